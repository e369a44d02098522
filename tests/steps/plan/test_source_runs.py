"""The images of a finished run may be the prompt rows of another job."""

import hashlib
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.storage import open_store
from tests.exports import contents_by_id, retried_run
from tests.jobs import image_rows
from tests.runs import fill, not_ok, planned, settings

ROWS = [
    {"prompt": "a red circle", "id": "first", "animal": "cat", "seed": 5, "guidance": 4.0},
    {"prompt": "a blue square", "id": "second", "animal": "dog", "seed": 6, "guidance": 5.0},
]
# A model that edits takes them as references; this one draws over them.
DRAWN_OVER = {"source_image": "image", "reference_images": None}


def _source(folder: Path, output: str | None = None) -> str:
    """A finished run of two images, of which a retry made the second."""
    output = output or str(folder / "source")
    return retried_run(folder, output, ROWS, "drawn", "animal", {1: not_ok(1)})


def _plan(folder: Path, prompts: object, **changes: object) -> PlanResult:
    values = settings(folder, str(folder / "out"), **{"columns": DRAWN_OVER, **changes})
    return make_plan(validate_job({**values, "prompts": prompts}))


def _facts(result: PlanResult, *names: str) -> list[tuple[object, ...]]:
    rows = image_rows(result).to_pylist()
    return sorted(tuple(row[name] for name in names) for row in rows)


def test_images_of_a_run_are_prompt_rows(tmp_path: Path, store_uri: str) -> None:
    uri = _source(tmp_path, store_uri)
    result = _plan(tmp_path, {"run": uri}, carry=["animal", "source_seed"])
    images = contents_by_id(uri)
    digests = {image_id: hashlib.sha256(image).hexdigest() for image_id, image in images.items()}
    assert result.plan.input.runs == ("drawn",)
    assert (result.guessed_columns, result.unused_columns) == ({}, ())
    rows = image_rows(result).to_pylist()
    assert {row["id"]: row["source_image"] for row in rows} == digests
    for row in rows:
        (source,) = [each for each in ROWS if each["prompt"] == row["prompt"]]
        assert (row["animal"], row["source_seed"]) == (source["animal"], source["seed"])
        assert (row["guidance"], row["seed"] == source["seed"]) == (3.0, False)
        stored = open_store(result.uri).read(input_image_key(row["source_image"]))
        assert stored == images[row["id"]]


def test_settings_that_columns_names_are_taken_from_the_source(tmp_path: Path) -> None:
    columns = {**DRAWN_OVER, "seed": "source_seed", "id": "source_id"}
    result = _plan(tmp_path, {"run": _source(tmp_path)}, columns=columns)
    assert _facts(result, "id", "seed", "guidance") == [("first", 5, 3.0), ("second", 6, 3.0)]


def test_templates_write_instructions_for_the_images_of_a_run(tmp_path: Path) -> None:
    uri = _source(tmp_path)
    template = "{{ prompt }} with a {{ animal }}, at {night|noon}"
    result = _plan(tmp_path, {"run": uri, "template": template})
    prompts = [
        f"{row['prompt']} with a {row['animal']}, at {time}"
        for row in ROWS
        for time in ("night", "noon")
    ]
    assert [prompt for (prompt,) in _facts(result, "prompt")] == sorted(prompts)
    assert {image for (image,) in _facts(result, "source_image")} == {
        hashlib.sha256(image).hexdigest() for image in contents_by_id(uri).values()
    }


def test_images_of_all_runs_of_an_output_are_prompt_rows(tmp_path: Path) -> None:
    uri = _source(tmp_path)
    later = [{"prompt": "a green triangle", "id": "third"}]
    second = planned(tmp_path / "later", str(Path(uri).parent), later)
    fill(second)
    aggregate(second.uri)
    result = _plan(tmp_path, {"run": str(Path(uri).parent)})
    prompts = ["a blue square", "a green triangle", "a red circle"]
    assert [prompt for (prompt,) in _facts(result, "prompt")] == prompts


def test_a_plan_is_resumed_without_its_source(tmp_path: Path) -> None:
    uri = _source(tmp_path)
    first = _plan(tmp_path, {"run": uri}, run_id="edits")
    assert _plan(tmp_path, {"run": uri}).plan.run_id == _plan(tmp_path, {"run": uri}).plan.run_id
    Path(uri).rename(tmp_path / "moved")
    again = _plan(tmp_path, {"run": uri}, run_id="edits")
    assert (again.adopted, again.plan) == (True, first.plan)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({"run": "source/absent"}, "absent: is neither a run nor a folder with finished runs"),
        ({"run": "source/unfinished"}, "unfinished: is not finished, and prompts.run takes"),
        ({"run": "source/failed"}, "failed: has no rows"),
        ({"run": "source/x", "table": "b", "template": "c"}, "has run and table; remove one"),
    ],
)
def test_runs_without_images_are_refused(
    tmp_path: Path, prompts: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned(tmp_path, "source", ROWS, run_id="unfinished")
    failed = planned(tmp_path, "source", ROWS, run_id="failed", limits={"failed_share": 1})
    fill(failed, {0: not_ok(0), 1: not_ok(1)})
    aggregate(failed.uri)
    with pytest.raises(BadInput, match=message):
        _plan(tmp_path, prompts)
