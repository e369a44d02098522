"""The commands for a run after its end: what they print, and their exit codes."""

import json
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.local import run as run_job
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.attempts import list_attempts
from imagekiln.steps.runs.keys import PLAN_KEY, commit_key
from imagekiln.steps.runs.parts import part_to_parquet
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage.store import Store
from tests.faults import manifests
from tests.jobs import files
from tests.runs import PROMPTS, encoded, fill, job, not_ok, planned, write_prompts
from tests.workflows.cli.commands import kiln, parse_json


@pytest.fixture
def failed(tmp_path: Path) -> PlanResult:
    """A run of which two images failed, accepted at that."""
    there = planned(tmp_path, str(tmp_path / "out"))
    fill(there, {3: not_ok(3), 9: not_ok(9)})
    aggregate(there.uri, 0.1)
    return there


def test_retry_says_what_it_made_again(failed: PlanResult) -> None:
    done = kiln("retry", failed.uri)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"Retry 1: 2 images. {failed.plan.run_id}: 20 of 20 images are ok.\n"
    assert f"Planned 2 images in 1 shard: {failed.uri}/retry-1" in done.stderr
    again = kiln("retry", failed.uri)
    assert (again.exit_code, again.stdout.partition(".")[0]) == (0, "Nothing left to retry")


def test_reproduced_image_with_equal_bytes_is_a_success(store: Store, tmp_path: Path) -> None:
    name = str(manifests(store.uri)[0]["image_id"])
    done = kiln("reproduce", store.uri, name, "--to", str(tmp_path / "a.png"))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert f"file:        {tmp_path}/a.png" in lines
    assert "equal:       bytes" in lines
    assert done.stderr == "Loading the model ...\n"
    assert (
        parse_json(
            kiln("reproduce", store.uri, name, "--to", str(tmp_path / "a.png"), "--format", "json")
        )["equal"]
        == "bytes"
    )


def test_reproduced_image_that_differs_exits_3_and_says_how(store: Store, tmp_path: Path) -> None:
    name = str(manifests(store.uri)[0]["image_id"])
    part = read_shard(store, load_plan(store), 0)[0]
    store.replace(part.key, part_to_parquet(part.rows, [encoded(place) for place in range(4)]))
    store.remove(commit_key(0))
    for key in list_attempts(store):
        store.replace(key, store.read(key).replace(b'"device": "cpu"', b'"device": "a GPU"'))
    aggregate(store.uri)
    done = kiln("reproduce", store.uri, name, "--to", str(tmp_path / "a.png"))
    assert done.exit_code == 3
    assert "\nlikeness:    " in done.stdout
    assert "\nthen:        device a GPU, " in done.stdout
    assert "\nnow:         device cpu, " in done.stdout
    found = parse_json(
        kiln("reproduce", store.uri, name, "--to", str(tmp_path / "a.png"), "--format", "json"), 3
    )
    assert found["equal"] == "nothing"


def test_diff_says_its_numbers_and_where_its_page_is(store: Store, tmp_path: Path) -> None:
    done = kiln("diff", store.uri, store.uri, "--to", str(tmp_path / "page"))
    assert done.exit_code == 0, done.output
    assert "both:         20\n" in done.stdout
    assert f"page:         {tmp_path}/page/index.html\n" in done.stdout
    found = parse_json(
        kiln("diff", store.uri, store.uri, "--to", str(tmp_path / "page"), "--format", "json")
    )
    assert (found["both"], found["rms"]) == (20, 0.0)


def test_gc_lists_and_removes_only_when_told(tmp_path: Path) -> None:
    there = planned(tmp_path, str(tmp_path / "out"))
    fill(there)
    before = files(tmp_path / "out")
    assert kiln("gc", str(tmp_path / "out")).stdout == (
        "No unfinished run is older than --older-than (7 days by default).\n"
    )
    done = kiln("gc", str(tmp_path / "out"), "--older-than", "0")
    assert done.stdout.splitlines()[1].split()[:2] == [there.uri, str(len(before))]
    assert "To remove with --remove" in done.stdout
    assert files(tmp_path / "out") == before
    found = parse_json(
        kiln("gc", str(tmp_path / "out"), "--older-than", "0", "--remove", "--format", "json")
    )
    assert found["removed"] is True
    assert not [*(tmp_path / "out").rglob("*.parquet")]


def test_runs_says_when_each_run_was_planned_and_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    output = tmp_path / "out"
    good = planned(tmp_path, str(output), run_id="a-good")
    fill(good)
    aggregate(good.uri)
    bad = planned(tmp_path, str(output), run_id="b-bad")
    fill(bad, {3: not_ok(3)})
    assert kiln("aggregate", bad.uri).exit_code == 3
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    fill(planned(tmp_path, str(output), run_id="c-old"))
    lines = kiln("runs", str(output)).stdout.splitlines()
    assert lines[0].split() == ["run", "planned", "state", "images"]
    assert lines[1] == "c-old   2023-11-14 22:13 UTC  unfinished  20 planned images"
    assert lines[2] == "a-good  2027-01-15 08:00 UTC  succeeded   20 images"
    assert lines[3] == "b-bad   2027-01-15 08:00 UTC  incomplete  19 images (1 failed)"
    states = [
        run["state"] for run in json.loads(kiln("runs", str(output), "--format", "json").stdout)
    ]
    assert states == ["unfinished", "succeeded", "incomplete"]


def test_runs_names_the_gates_that_a_run_exceeded(tmp_path: Path) -> None:
    gates = {"low_contrast": {"below": 0.5, "share": 0.0}}
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS[:4])
    with pytest.raises(Incomplete, match=r"report/index\.html"):
        run_job(job(prompts, str(tmp_path / "out"), gates=gates))
    assert "incomplete, gates: low_contrast" in kiln("runs", str(tmp_path / "out")).stdout


@pytest.mark.parametrize("key", [PLAN_KEY, commit_key(0)])
def test_runs_names_a_run_that_cannot_be_read_and_lists_the_others(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out"
    for name in ("good", "damaged"):
        made = planned(tmp_path, str(output), run_id=name)
        fill(made)
        aggregate(made.uri)
    (output / "damaged" / key).write_text("{")
    done = kiln("runs", str(output))
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["good"]
    (warning,) = caplog.messages
    assert f"{output}/damaged/{key}: is not a readable" in warning
    assert warning.endswith("It is not listed.")
