"""The settings of passes: what a job may ask for, in which order, and under which names."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.step import fixed_settings
from tests.runs import job, settings

UPSCALE = {"kind": "upscale", "id": "org/upscaler"}
REFINE = {"kind": "refine"}
CAPTION = {"kind": "caption", "id": "org/captioner"}


def job_with(passes: object, **changes: object) -> Job:
    """A job with these passes."""
    return job(Path("prompts.parquet"), "out", passes=passes, **changes)


def test_passes_keep_their_order_and_their_defaults() -> None:
    parsed = job_with({"b": UPSCALE, "a": REFINE, "words": CAPTION})
    assert [*parsed.passes] == ["b", "a", "words"]
    refine = parsed.passes["a"]
    assert isinstance(refine, RefinePass)
    assert (refine.strength, refine.steps, refine.guidance, refine.scale) == (0.3, None, None, None)
    assert validate_job(parsed.model_dump(mode="json")) == parsed


def test_a_job_without_passes_is_written_as_before() -> None:
    plain = validate_job(settings(Path("prompts.parquet"), "out"))
    assert "passes" not in plain.model_dump_json()


def test_the_order_of_passes_counts_where_a_run_is_resumed() -> None:
    one, other = job_with({"a": UPSCALE, "b": REFINE}), job_with({"b": REFINE, "a": UPSCALE})
    assert one.passes == other.passes
    assert fixed_settings(one) != fixed_settings(other)


@pytest.mark.parametrize(
    ("passes", "sentence"),
    [
        ({"X": REFINE}, r"passes"),
        ({"../x": REFINE}, r"passes"),
        ({"x": REFINE | {"strength": 0}}, r"passes\.x\.strength"),
        ({"x": REFINE | {"scale": 9}}, r"passes\.x\.scale"),
        ({"x": REFINE | {"steps": 3, "strength": 0.3}}, r"leaves nothing to draw; raise one"),
        ({"x": UPSCALE | {"id": "s3://key:secret@bucket"}}, r"contains credentials"),
        ({"x": UPSCALE | {"trust_remote_code": True}}, r"passes\.x"),
        ({"blank": REFINE}, r"passes\.blank, the name of a column, score, gate or status"),
        ({"prompt": CAPTION}, r"passes\.prompt, the name of a column"),
        ({"words": CAPTION, "x": REFINE}, r"passes\.x after the caption words"),
        ({f"x{number}": REFINE for number in range(9)}, r"passes"),
    ],
)
def test_wrong_passes_are_refused_in_a_sentence(passes: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as error:
        job_with(passes)
    assert "\n" not in str(error.value)


def test_a_second_pass_with_adapters_is_refused() -> None:
    model = {"id": "org/model", "ip_adapter": {"id": "org/adapter", "weight_name": "a.safetensors"}}
    with pytest.raises(BadInput, match=r"refine, which does not work with model\.controlnet"):
        job_with({"x": REFINE}, model=model)
    by_another_model = job_with({"x": REFINE | {"model": {"id": "org/other"}}}, model=model)
    assert validate_job(by_another_model.model_dump(mode="json")) == by_another_model


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        ({}, r"passes\.x.*model\.id"),
        ({"id": "org/other", "dtype": "int8"}, r"passes\.x.*model\.dtype"),
        ({"id": "org/other", "revision": "../main"}, r"passes\.x.*model\.revision"),
        ({"id": "org/other", "variant": "a/b"}, r"passes\.x.*model\.variant"),
        ({"id": "org/other", "loras": {}}, r"passes\.x.*model\.loras"),
        ({"id": "s3://key:secret@bucket"}, r"contains credentials"),
    ],
)
def test_a_wrong_model_of_a_pass_is_refused_with_its_setting(model: object, setting: str) -> None:
    with pytest.raises(BadInput, match=setting) as error:
        job_with({"x": REFINE | {"model": model}})
    assert "\n" not in str(error.value)
