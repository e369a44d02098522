"""Copies to the device that wait for nothing: the images are those of ordinary copies."""

import pytest

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.kernels import OVERLAP_BATCHES_VARIABLE
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
