"""Copies to the device that wait for nothing: the images are those of ordinary copies."""

from contextlib import suppress

import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.kernels import OVERLAP_BATCHES_VARIABLE
from imagekiln.steps.generate.diffusion.overlap import copy_to_device, overlapped_copies
from tests import models
from tests.drawing import bytes_of
from tests.models import Kind
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("sd", "default"),
        ("sdxl", "default"),
        ("sdxl", "dpmpp_2m"),
        ("sdxl", "heun"),
        ("sd3", "default"),
        ("flux", "default"),
    ],
)
def test_images_are_the_same_with_the_switch_and_without(
    kind: Kind, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [image_row(f"number {index}", index, sampler=sampler) for index in range(2)]
    plain = bytes_of(Denoiser(models.pipe(kind)), rows, 2)
    monkeypatch.setenv(OVERLAP_BATCHES_VARIABLE, "1")
    denoiser = Denoiser(models.pipe(kind))
    assert bytes_of(denoiser, rows, 2) == plain
    assert bytes_of(denoiser, rows, 2) == plain


@pytest.mark.parametrize("switch", [False, True])
def test_a_pipeline_and_its_scheduler_are_left_as_they_were(
    switch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAP_BATCHES_VARIABLE, str(int(switch)))
    pipe = models.pipe("sdxl")
    set_timesteps = pipe.scheduler.set_timesteps
    with suppress(LookupError), overlapped_copies(pipe, None):
        assert (pipe.scheduler.set_timesteps == set_timesteps) is not switch
        raise LookupError
    assert pipe.scheduler.set_timesteps == set_timesteps
    assert "_get_add_time_ids" not in vars(pipe)


@pytest.mark.parametrize("switch", [False, True])
def test_a_tensor_arrives_as_it_was(switch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERLAP_BATCHES_VARIABLE, str(int(switch)))
    tensor = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(copy_to_device(tensor, torch.device("cpu")), tensor)
