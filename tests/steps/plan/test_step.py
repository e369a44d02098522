import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.plan import writing
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import PLAN_KEY, duplicates_key, rejected_key
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.shard import planned_shard_key
from imagekiln.steps.storage import open_store
from tests.interleaving import frozen, interleaving
from tests.jobs import files, image_rows, job, plan, write
from tests.s3 import S3_AMONG_SLOW
from tests.texts import HOSTILE, chance

COLUMNS = {
    "prompt": [f"{text} {n}" for n in range(20) for text in HOSTILE],
    "seed": [*range(20 * len(HOSTILE))],
}
SMALL = {"batch": {"images": 4}, "part": {"images": 8}, "shard": {"images": 64}}


def lists_of(plan: Plan) -> list[str]:
    """The names of what a plan names: lists of refused rows and of duplicates, and shards."""
    shards = [planned_shard_key(plan, number) for number in range(len(plan.shards))]
    return [rejected_key(plan.rejected), duplicates_key(plan.duplicates), *shards]


@S3_AMONG_SLOW
def test_same_job_on_the_same_input_gives_the_same_bytes(tmp_path: Path, store_uri: str) -> None:
    rng = chance(7)
    columns = {
        "prompt": [f"{rng.choice(HOSTILE)} {rng.randrange(500)}" for _ in range(3000)],
        "steps": [rng.choice([2, 3, 4]) for _ in range(3000)],
        "images": [rng.choice([1, 2]) for _ in range(3000)],
    }
    outputs = []
    for output in (store_uri, str(tmp_path / "elsewhere")):
        planned = plan(tmp_path, columns, **SMALL, output=output)
        store = open_store(planned.uri)
        content = store.read(PLAN_KEY).replace(output.encode(), b"OUTPUT")
        outputs.append([content, *map(store.read, lists_of(planned.plan))])
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_number_of_processors_and_hash_seed_do_not_change_the_plan(tmp_path: Path) -> None:
    rows = range(30_000)  # with five images each, enough for several threads to share
    columns = {
        "prompt": [f"p{n % 4000}" for n in rows],
        "steps": [n % 3 + 1 for n in rows],
        "images": [5 for _ in rows],
    }
    write(tmp_path / "prompts.parquet", columns)
    code = """
import os, sys
from pathlib import Path
from tests.jobs import plan
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])
plan(Path(sys.argv[2]), output=sys.argv[3])
"""
    outputs = []
    for processors in ("1", "64"):
        output = tmp_path / processors
        environment = {**os.environ, "PYTHONHASHSEED": processors}
        command = [sys.executable, "-c", code, processors, str(tmp_path), str(output)]
        subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[3])
        written = files(output)
        outputs.append(
            {
                name: content.replace(str(output).encode(), b"OUTPUT")
                for name, content in written.items()
            }
        )
    assert outputs[0] == outputs[1]


def test_what_is_accepted_of_a_run_changes_neither_its_name_nor_its_plan(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b", "c", None]}
    one = plan(tmp_path, columns, limits={"rejected_share": 0.5})
    content = open_store(one.uri).read(PLAN_KEY)
    two = plan(tmp_path, columns, limits={"rejected_share": 0.6, "failed_share": 0.5})
    assert (two.adopted, two.uri) == (True, one.uri)
    assert open_store(one.uri).read(PLAN_KEY) == content


@S3_AMONG_SLOW
def test_plan_that_is_there_is_adopted_and_left_as_it_is(tmp_path: Path, store_uri: str) -> None:
    one = plan(tmp_path, COLUMNS, output=store_uri)
    content = open_store(one.uri).read(PLAN_KEY)
    two = plan(tmp_path, COLUMNS, output=store_uri)
    assert (two.adopted, two.plan, two.uri) == (True, one.plan, one.uri)
    assert open_store(one.uri).read(PLAN_KEY) == content


def test_named_run_is_adopted_even_if_the_input_has_changed_or_gone(tmp_path: Path) -> None:
    one = plan(tmp_path, {"prompt": ["a"]}, run_id="nightly")
    same, changed, grown = (
        plan(tmp_path, {"prompt": prompts}, run_id="nightly")
        for prompts in (["a"], ["b"], ["a", "b"])
    )
    (tmp_path / "prompts.parquet").unlink()
    gone = plan(tmp_path, run_id="nightly")
    assert all(again.plan == one.plan for again in (same, changed, grown, gone))

    assert (one.input_change, same.input_change) == (None, None)
    name = tmp_path / "prompts.parquet"
    assert f"{name}: this input has changed since the run was" in str(changed.input_change)
    assert f"{name}: this input has changed since the run was" in str(grown.input_change)
    assert "cannot be compared" in str(gone.input_change)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"defaults": {"steps": 3}}, "defaults"),
        ({"carry": ["x"]}, "carry"),
        ({"name": "b"}, "name"),
    ],
)
def test_run_with_other_settings_is_refused_and_left_as_it_is(
    tmp_path: Path, settings: dict[str, object], key: str
) -> None:
    columns = {"prompt": ["a"], "x": [1]}
    planned = plan(tmp_path, columns, run_id="mine")
    before = files(tmp_path)
    with pytest.raises(BadInput) as caught:
        plan(tmp_path, None, run_id="mine", **settings)
    assert (
        str(caught.value)
        == f"{planned.uri}: holds a plan with another `{key}`. Choose another run_id or output."
    )
    assert files(tmp_path) == before


def test_planning_that_was_cut_off_is_finished_by_the_next(tmp_path: Path) -> None:
    planned = plan(tmp_path, COLUMNS, **SMALL)
    expected = files(Path(planned.uri))
    for name in (PLAN_KEY, *lists_of(planned.plan)[1:3]):
        (Path(planned.uri) / name).unlink()
    again = plan(tmp_path, COLUMNS, **SMALL)
    assert not again.adopted
    assert files(Path(planned.uri)) == expected


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({}, "this input has changed since the run was planned"),
        ({"defaults": {"seed": 1}}, "holds a plan with another `defaults`"),
    ],
)
def test_of_two_planners_the_first_has_the_say_and_the_other_learns_what_is_other(
    settings: dict[str, object], outcome: str, tmp_path: Path
) -> None:
    asked = job(tmp_path, {"prompt": ["a", "b", "c"]}, run_id="x", **settings)
    with interleaving(tmp_path / "out", lambda *_: None):
        adopted = list[PlanResult]()
        second = frozen(lambda: adopted.append(make_plan(asked)), "create", PLAN_KEY)
        first = plan(tmp_path, {"prompt": ["a", "b"]}, run_id="x")
        write(tmp_path / "prompts.parquet", {"prompt": ["a", "b", "c"]})
        second.finish()
    if second.error is None:
        assert (adopted[0].adopted, adopted[0].plan) == (True, first.plan)
        assert outcome in str(adopted[0].input_change)
    else:
        assert isinstance(second.error, BadInput)
        assert outcome in str(second.error)
    assert load_plan(open_store(first.uri)) == first.plan
    assert image_rows(first)["prompt"].to_pylist() == ["a", "b"]


def test_run_that_was_removed_is_neither_planned_again_nor_aggregated(tmp_path: Path) -> None:
    planned = plan(tmp_path, {"prompt": ["a"]}, run_id="x")
    gc(str(tmp_path / "out"), -1, remove=True)
    for command in (
        lambda: plan(tmp_path, {"prompt": ["a"]}, run_id="x"),
        lambda: aggregate(planned.uri),
    ):
        with pytest.raises(BadInput, match=r"was removed .* Choose another run_id or --date"):
            command()


def test_bundled_demo_is_planned_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = {
        "name": "demo",
        "prompts": "bundled:prompts.parquet",
        "output": "out",
        "model": {"id": "bundled:shapes"},
    }
    planned = make_plan(validate_job(demo))
    assert planned.uri == f"out/{planned.plan.run_id}"
    assert image_rows(planned).num_rows == planned.plan.counts.images > 100


def test_shard_that_pods_would_refuse_for_its_size_is_not_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_SHARD_BYTES", 1_000_000)
    rows = {"prompt": [f"{number}" for number in range(1000)], "note": ["x" * 2000] * 1000}
    with pytest.raises(BadInput, match=r"Set shard\.images to less than [34]\d\d, or carry fewer"):
        plan(tmp_path, rows, carry=["note"])
    assert len(plan(tmp_path, rows, carry=["note"], shard={"images": 320}).plan.shards) == 4


def test_a_run_says_that_the_code_of_a_score_has_changed_since_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "night_score.py"
    module.write_text("def warm(images, specs):\n    return [0.0 for _ in images]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    scores = {"warm": {"kind": "own", "entry": "night_score:warm"}}
    settings = {"scores": scores, "output": str(tmp_path / "out")}
    for run_id in ({}, {"run_id": "night"}):
        asked = job(tmp_path, {"prompt": ["a"]}, **settings, **run_id)
        before = module.read_text()
        assert make_plan(asked).input_change is None
        assert make_plan(asked).input_change is None
        module.write_text(before.replace("0.0", "1.0"))
        change = make_plan(asked).input_change
        assert change is not None
        assert change.startswith("scores.warm.entry: the file of this function has changed since")
        module.write_text(before)
