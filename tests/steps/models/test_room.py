"""The size of a model's weights, and whether a GPU has room for them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion import pipeline
from imagekiln.steps.generate.diffusion.pipeline import open_device
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import load_model_facts
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from tests.hub import MODEL, REVISION, serving_model
from tests.models import folder, pipe
from tests.runs import job, planned, write_prompts

SD = {"id": str(folder("sd")), "dtype": "float32"}


def _weights(**settings: str) -> int | None:
    return load_model_facts(ModelSettings.model_validate(settings)).weights_bytes


def _parameters() -> int:
    components = pipe("sd").components.values()
    modules = [each for each in components if isinstance(each, torch.nn.Module)]
    return sum(weight.numel() for module in modules for weight in module.parameters())


def test_weights_have_the_size_that_they_take_once_loaded() -> None:
    in_float32 = _weights(**SD)
    assert in_float32 is not None
    assert in_float32 == pytest.approx(4 * _parameters(), rel=0.01)  # beside indexes of positions
    in_bfloat16 = _weights(**{**SD, "dtype": "bfloat16"})
    assert in_bfloat16 == pytest.approx(in_float32 / 2, rel=0.01)


def test_weights_on_the_hub_are_measured_by_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_model(folder("sd"), tmp_path, monkeypatch):
        assert _weights(id=MODEL, revision=REVISION, dtype="float32") == _weights(**SD)


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
