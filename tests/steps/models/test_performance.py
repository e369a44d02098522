"""Batch sizes are powers of two, and the time of an image is estimated."""

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.families import CallSignature
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.performance import time_figure

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


def test_guidance_doubles_the_work_of_models_that_run_twice_for_it() -> None:
    once, twice = (_seconds(SDXL, defaults={"guidance": guidance}) for guidance in (1.0, 5.0))
    assert 1.8 < twice / once < 2
    flux = [
        _seconds("black-forest-labs/FLUX.1-dev", defaults={"guidance": guidance})
        for guidance in (1.0, 5.0)
    ]
    assert flux[0] == flux[1]
