"""Batch sizes are powers of two, and the time of an image is estimated."""

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.performance import (
    FORWARD_COSTS,
    floor_power_of_two,
    limit_batch_pixels,
    time_figure,
)
from imagekiln.steps.models.pipeline_calls import CallSignature


@pytest.mark.parametrize(("most", "power"), [(-3, 1), (1, 1), (1000, 512)])
def test_power_of_two_is_the_largest_up_to_a_number(most: float, power: int) -> None:
    assert floor_power_of_two(most) == power


@pytest.mark.parametrize(("most", "images"), [(None, 8), (799, 4), (99, 1)])
def test_a_batch_is_halved_until_it_has_no_more_pixels_than_fit(
    most: int | None, images: int
) -> None:
    assert limit_batch_pixels(8, 100, most) == images


STEPS = 30
SDXL = "stabilityai/stable-diffusion-xl-base-1.0"


def _job(model: str, **settings: object) -> Job:
    return validate_job(
        {"name": "a", "prompts": "p", "output": "o", "model": {"id": model}, **settings}
    )


def _facts(model: str, side: int = 1024) -> ModelFacts:
    """A model of which the denoiser runs twice a step with guidance, unless it is a FLUX."""
    guided_above = None if "FLUX" in model else 1.0
    own = OwnSettings(
        STEPS, 5.0, "a test", CallSignature(5, "guidance_scale", guided_above=guided_above)
    )
    return ModelFacts("digest", "AnyPipeline", side, side, 8, own)


def _seconds(model: str, side: int = 1024, **settings: object) -> float:
    job = _job(model, **settings)
    figure = time_figure(job, _facts(model, side))
    assert figure is not None
    return figure.seconds_per_work * side * side * STEPS


def test_figure_in_the_job_is_what_an_image_of_default_size_and_steps_takes() -> None:
    assert _seconds("bundled:shapes", 64, shard={"seconds_per_image": 1.5}) == pytest.approx(1.5)
    assert _seconds(SDXL, shard={"seconds_per_image": 1.5}) == pytest.approx(1.5)


def test_model_that_nobody_knows_has_no_figure() -> None:
    assert time_figure(_job("bundled:shapes"), _facts("bundled:shapes", 64)) is None


@pytest.mark.parametrize("model", FORWARD_COSTS)
def test_known_models_take_seconds_not_hours(model: str) -> None:
    assert 0.02 < _seconds(model) < 60


def test_guidance_doubles_the_work_of_models_that_run_twice_for_it() -> None:
    once, twice = (_seconds(SDXL, defaults={"guidance": guidance}) for guidance in (1.0, 5.0))
    assert 1.8 < twice / once < 2
    flux = [
        _seconds("black-forest-labs/FLUX.1-dev", defaults={"guidance": guidance})
        for guidance in (1.0, 5.0)
    ]
    assert flux[0] == flux[1]


def test_time_is_the_same_whenever_it_is_asked() -> None:
    assert _seconds(SDXL) == _seconds(SDXL)


def test_figure_says_whether_it_was_measured() -> None:
    computed = time_figure(_job(SDXL), _facts(SDXL))
    assert computed is not None
    assert not computed.is_measured
    assert "computed, not measured" in computed.source
    own = time_figure(_job(SDXL, shard={"seconds_per_image": 1.5}), _facts(SDXL))
    assert own is not None
    assert own.is_measured
