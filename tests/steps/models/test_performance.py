"""The time of an image, before any is drawn."""

from pathlib import Path

import pytest

from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.families import CallSignature
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.performance import time_figure
from tests.runs import job

STEPS = 30
SDXL = "stabilityai/stable-diffusion-xl-base-1.0"
FLUX = "black-forest-labs/FLUX.1-dev"


def _seconds(model: str, side: int = 1024, **settings: object) -> float:
    """The time of an image by a model that runs twice a step with guidance, unless it is a FLUX."""
    guided_above = None if "FLUX" in model else 1.0
    call = CallSignature(5, "guidance_scale", guided_above=guided_above)
    facts = ModelFacts("digest", "Any", side, side, 8, OwnSettings(STEPS, 5.0, "a test", call))
    changes: dict[str, object] = {"defaults": {}, "model": {"id": model}, **settings}
    figure = time_figure(job(Path("prompts.parquet"), "out", **changes), facts)
    assert figure is not None
    return figure.seconds_per_work * side * side * STEPS


def test_figure_in_the_job_is_what_an_image_of_default_size_and_steps_takes() -> None:
    assert _seconds("bundled:shapes", 64, shard={"seconds_per_image": 1.5}) == pytest.approx(1.5)
    assert _seconds(SDXL, shard={"seconds_per_image": 1.5}) == pytest.approx(1.5)


def test_guidance_doubles_the_work_of_models_that_run_twice_for_it() -> None:
    guidances = [{"guidance": guidance} for guidance in (1.0, 5.0)]
    once, twice = (_seconds(SDXL, defaults=defaults) for defaults in guidances)
    assert 1.8 < twice / once < 2
    once, twice = (_seconds(FLUX, defaults=defaults) for defaults in guidances)
    assert once == twice
