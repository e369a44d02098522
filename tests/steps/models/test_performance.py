"""The time of an image, the size of a model's weights, and whether a GPU has room for them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import pipeline
from imagekiln.steps.generate.diffusion.pipeline import open_device
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import ModelFacts, locate_model
from imagekiln.steps.models.families import CallSignature
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.performance import time_figure
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from tests.hub import MODEL, REVISION, serving_model
from tests.models import folder, pipe
from tests.runs import job, planned, write_prompts

SD = {"id": str(folder("sd")), "dtype": "float32"}
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


def _weights(**settings: str) -> int | None:
    return locate_model(ModelSettings.model_validate(settings))[1].weights_bytes


def test_weights_have_the_size_that_they_take_once_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [each for each in pipe("sd").components.values() if isinstance(each, torch.nn.Module)]
    count = sum(weight.numel() for module in modules for weight in module.parameters())
    in_float32 = _weights(**SD)
    assert in_float32 is not None
    assert in_float32 == pytest.approx(4 * count, rel=0.01)  # beside indexes of positions
    in_bfloat16 = _weights(**{**SD, "dtype": "bfloat16"})
    assert in_bfloat16 == pytest.approx(in_float32 / 2, rel=0.01)
    with serving_model(folder("sd"), tmp_path, monkeypatch):  # by their headers
        assert _weights(id=MODEL, revision=REVISION, dtype="float32") == in_float32


def test_model_that_no_gpu_of_the_profile_has_room_for_is_refused_in_planning(
    tmp_path: Path,
) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    asked = job(prompts, str(tmp_path / "out"), model=SD, cluster={"profile": "l4"})
    assert estimate(asked, gpu_memory=24).weights_bytes == _weights(**SD)
    sentence = (
        r"weights of the job's models take 0\.0 GiB in float32, and the GPU of its profile has "
        r"0\.0 GiB\. Choose a larger GPU .*model\.dtype"
    )
    for check in (make_plan, estimate):
        with pytest.raises(BadInput, match=sentence):
            check(asked, gpu_memory=1e-4)
    assert not (tmp_path / "out").exists()


def test_model_larger_than_the_gpu_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, str(tmp_path / "out"), [{"prompt": "x"}]).plan
    plan = replace(plan, model=replace(plan.model, weights_bytes=100 * 2**30))
    monkeypatch.setattr(pipeline, "device_memory", lambda _: 79 * 2**30)
    with pytest.raises(BadInput, match=r"take 100\.0 GiB .* has 79\.0 GiB"):
        open_device(plan)
