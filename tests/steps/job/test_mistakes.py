"""The sentence for each mistake in a job."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job
from tests.smallest import SMALLEST


def _message(**settings: object) -> str:
    with pytest.raises(BadInput) as caught:
        validate_job({**SMALLEST, **settings}, "job.yaml")
    return str(caught.value).removeprefix("job.yaml: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": {"id": "x", "dtype": "bf16"}},
            "model.dtype is \"bf16\"; it should be 'float32', 'bfloat16' or 'float16'.",
        ),
        (
            {"defaults": {"seed": -1}},
            "defaults.seed is -1; it should be greater than or equal to 0.",
        ),
        ({"carry": ["a", "a"]}, 'carry has two columns "a"; remove or rename one of them.'),
        ({"stpes": 5}, "stpes is not a setting; write defaults.steps."),
        ({"width": 512}, "width is not a setting; write defaults.width."),
        (
            {"defaults": {"gidance": 1}},
            "defaults.gidance is not a setting; write defaults.guidance.",
        ),
        (
            {"model": {"id": "x", "zzz": 1}},
            "model.zzz is not a setting; remove it.",
        ),
        (
            {"prompts": {"template": "a", "wildcard": "c"}},
            "prompts.wildcard is not a setting; write prompts.wildcards.",
        ),
        (
            {"scores": {"sharp": {"kind": "sharpness", "mni": 1}}},
            "scores.sharp.mni is not a setting; write scores.sharp.min.",
        ),
        (
            {"gates": {"checks": [{"name": "a"}]}},
            "gates.checks[0].entry is missing; add it.",
        ),
        (
            {"passes": {"a": {"kind": "blur"}}},
            "passes.a.kind is \"blur\"; it should be one of 'upscale', 'caption', 'refine'.",
        ),
        (
            {"model": "bundled:shapes"},
            'model is "bundled:shapes"; it should be a group of settings.',
        ),
        (
            {"name": "Big"},
            'name is "Big"; write at most 40 lower-case letters, digits and hyphens, '
            "no hyphen first or last.",
        ),
        ({"prompts": [1]}, "prompts[0] is 1; it should be a valid string."),
        (
            {"shard": {"images": 1, "minutes": 1}},
            "shard has both shard.images and shard.minutes; remove one of them.",
        ),
        ({"skip_existing": None}, "skip_existing is null; it should be a valid boolean."),
    ],
)
def test_mistake_is_reported_with_what_to_write(settings: dict[str, object], message: str) -> None:
    assert _message(**settings) == message


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "line\nbreak", '"quoted"', {"deep": ["x"] * 10_000}, ["x"] * 10_000]
)
def test_sentence_stays_one_short_line_whatever_was_written(value: object) -> None:
    message = _message(name=value)
    assert "\n" not in message
    assert len(message) < 200


def test_missing_settings_are_reported_at_their_groups() -> None:
    with pytest.raises(BadInput) as caught:
        validate_job(
            {"name": "a", "model": {}, "prompts": "p"}, "f", {(): "f:1", ("model",): "f:3"}
        )
    assert str(caught.value).splitlines() == [
        "f:1: output is missing; add it.",
        "f:3: model.id is missing; add it.",
    ]
