"""The noise of steps: the numbers that the scheduler would draw itself."""

from contextlib import nullcontext

import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.runs.image import ImageRow
from tests import families, models
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


def _rows(*seeds: int, **settings: object) -> list[ImageRow]:
    return [image_row(f"number {seed}", seed, seed=seed, **settings) for seed in seeds]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "sampler", "steps"),
    [
        ("sd", "euler_a", 4),
        ("sd", "ddpm", 4),
        ("sdxl", "lcm", 4),
        ("sdxl", "dpmpp_2m_sde", 4),
        ("sana-sprint", "default", 2),
    ],
)
def test_noise_of_steps_is_that_of_the_scheduler(
    kind: str, sampler: str, steps: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe() -> models.Untyped:
        known = kind in models.BUILD
        return (models.pipe(kind) if known else families.pipe(kind)).to(dtype)  # type: ignore[arg-type]  # in BUILD

    side = families.SIDES.get(kind, models.SIDE)
    rows = _rows(1, 2, 3, sampler=sampler, steps=steps, width=side, height=side)
    ours = bytes_of(Denoiser(pipe()), rows, 4)
    denoiser = "imagekiln.steps.generate.diffusion.denoiser"
    monkeypatch.setattr(f"{denoiser}.pinned_step_noise", lambda _: nullcontext())
    assert bytes_of(Denoiser(pipe()), rows, 4) == ours


def test_a_batch_that_failed_starts_from_the_same_noise_again() -> None:
    rows = _rows(3, 4, sampler="euler_a", steps=3)
    denoiser = Denoiser(models.pipe("sd"))
    plain = bytes_of(denoiser, rows, 2)
    steps = []

    def fail_at_second_step() -> None:
        steps.append(1)
        if len(steps) == 2:
            raise LookupError

    with pytest.raises(LookupError):
        denoiser.draw(rows, 2, fail_at_second_step)
    assert bytes_of(denoiser, rows, 2) == plain
