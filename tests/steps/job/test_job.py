"""The settings of a job, and their JSON schema."""

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from imagekiln.steps.job.job import Job
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.smallest import SMALLEST


def _validated(group: str, name: str, value: object) -> object:
    job = Job.model_validate({**SMALLEST, group: {name: value}})
    return getattr(getattr(job, group), name)


def test_job_reads_back_from_its_own_json() -> None:
    job = Job.model_validate(
        {**SMALLEST, "prompts": ["a", "b"], "carry": ["x"], "shard": {"minutes": 1.5}}
    )
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("group", "name", "inside", "outside"),
    [
        ("defaults", "steps", [1, 1000, None], [0, 1001, 1.5, "many", True]),
        (
            "defaults",
            "guidance",
            [0, 100.0, 7, None],
            [-0.1, 100.1, float("nan"), float("inf"), False],
        ),
        ("defaults", "width", [1, 4096, None], [0, -8, "wide"]),
        ("defaults", "images_per_prompt", [1, 10_000], [0, 10_001]),
        ("defaults", "seed", [0, 2**63 - 1], [-1, 2**63]),
        ("shard", "images", [1], [0]),
        ("shard", "minutes", [0.1], [0, -1]),
        ("part", "images", [1, 10_000], [0, 10_001]),
        ("batch", "images", [1, 1024], [0, 1025]),
        ("limits", "rejected_share", [0, 1], [-0.1, 1.1]),
        ("limits", "failed_share", [0, 1], [-0.1, 1.1]),
    ],
)
def test_numbers_stay_within_their_bounds(
    group: str, name: str, inside: list[object], outside: list[object]
) -> None:
    for value in inside:
        assert _validated(group, name, value) == value
    for value in outside:
        with pytest.raises(ValidationError):
            _validated(group, name, value)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("name", ["a", "a-b-0", "x" * 40], ["", "A", "-a", "a-", "a_b", "x" * 41, "a\n", "ä"]),
        (
            "run_id",
            ["a", "2026-07-01.nightly_A", "x" * 100, None],
            ["", ".a", "../a", "a/b", "x" * 101, "a\n"],
        ),
        ("prompts", ["p", ["p", "q"]], ["", [], [""], 3, None, "a\0b"]),
        ("output", ["o"], ["", None, "a\0b"]),
        ("carry", [[], ["x", "y"]], ["x", ["x", "x"], [""]]),
        (
            "model",
            [{"id": "x", "revision": name} for name in ("0" * 40, "main", "v1.0", "refs/pr/3")],
            [{"id": "x", "revision": name} for name in ("", "../main", "a//b", ".", "a/../b")],
        ),
        ("shard", [{"images": 1}, {"minutes": 1}, {}], [{"images": 1, "minutes": 1}]),
    ],
)
def test_texts_and_groups_are_what_they_must_be(
    name: str, right: list[object], wrong: list[object]
) -> None:
    for value in right:
        Job.model_validate({**SMALLEST, name: value})
    for value in wrong:
        with pytest.raises(ValidationError):
            Job.model_validate({**SMALLEST, name: value})


def test_json_schema_accepts_and_refuses_what_the_job_does() -> None:
    validator = Draft202012Validator(Job.model_json_schema())
    demo = yaml.safe_load((BUNDLED_FOLDER / "demo.yaml").read_text(encoding="utf-8"))
    assert [*validator.iter_errors(demo)] == []
    wrong = {**SMALLEST, "surprise": 1, "defaults": {"stepss": 1}, "output": 1}
    errors = validator.iter_errors(wrong)
    assert {error.json_path for error in errors} == {"$", "$.defaults", "$.output"}
