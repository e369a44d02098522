"""Noise that is drawn ahead: the same numbers, in another thread."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
import torch
from diffusers.utils.torch_utils import randn_tensor

from imagekiln.steps.generate.diffusion import noise as noise_module
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs
from imagekiln.steps.runs.image import ImageRow
from tests import families, models
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

Drawn = list[tuple[str, bool]]  # what was drawn, and whether in the main thread


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """What is drawn from now on."""
    calls: Drawn = []

    def watched(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def draw(*args: object, **kwargs: object) -> object:
            calls.append((name, threading.current_thread() is threading.main_thread()))
            return function(*args, **kwargs)

        return draw

    step = watched("step", randn_tensor)
    monkeypatch.setattr(noise_module, "randn_tensor", step)
    batch = watched("batch", PipelineInputs.noise_kwargs)
    monkeypatch.setattr(PipelineInputs, "noise_kwargs", batch)
    return calls


def _rows(*seeds: int, **settings: object) -> list[ImageRow]:
    return [image_row(f"number {seed}", seed, seed=seed, **settings) for seed in seeds]


def _plain_bytes(
    pipe: models.Untyped, rows: Sequence[ImageRow], size: int, monkeypatch: pytest.MonkeyPatch
) -> list[bytes]:
    """What is drawn where a scheduler draws its own noise, when it needs it."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "imagekiln.steps.generate.diffusion.denoiser.step_noise_from", lambda *_: nullcontext()
        )
        return bytes_of(Denoiser(pipe), rows, size)


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
def test_noise_of_steps_is_drawn_ahead_and_gives_equal_bytes(
    kind: str,
    sampler: str,
    steps: int,
    dtype: torch.dtype,
    drawn: Drawn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pipe() -> models.Untyped:
        known = kind in models.BUILD
        return (models.pipe(kind) if known else families.pipe(kind)).to(dtype)  # type: ignore[arg-type]  # in BUILD

    side = families.SIDES.get(kind, models.SIDE)
    rows = _rows(1, 2, 3, sampler=sampler, steps=steps, width=side, height=side)
    plain = _plain_bytes(pipe(), rows, 4, monkeypatch)
    assert ("step", False) not in drawn
    assert bytes_of(Denoiser(pipe()), rows, 4) == plain
    assert drawn.count(("step", True)) == 1, "but for the first step"
    assert ("step", False) in drawn


@pytest.mark.parametrize("kind", ["sd", "flux", "z-image"])
def test_noise_of_the_next_batch_is_drawn_beside_this_one_and_gives_equal_bytes(
    kind: str, drawn: Drawn
) -> None:
    def pipe() -> models.Untyped:
        return models.pipe(kind) if kind in models.BUILD else families.pipe(kind)  # type: ignore[arg-type]  # as above

    side = families.SIDES.get(kind, models.SIDE)
    batches = [_rows(*seeds, width=side, height=side) for seeds in ((1, 2), (3, 4), (5,))]
    plain = [bytes_of(Denoiser(pipe()), rows, 2) for rows in batches]
    drawn.clear()
    denoiser = Denoiser(pipe())
    ahead = []
    for rows, upcoming in zip(batches, [*batches[1:], []], strict=True):
        denoiser.set_upcoming(upcoming)
        ahead.append(bytes_of(denoiser, rows, 2))
    assert ahead == plain
    assert drawn.count(("batch", True)) == 1, "but for the first batch"


def test_a_batch_that_failed_starts_from_the_same_noise_again() -> None:
    rows = _rows(3, 4, sampler="euler_a", steps=3)
    plain = bytes_of(Denoiser(models.pipe("sd")), rows, 2)
    pipe = models.pipe("sd")
    denoiser = Denoiser(pipe)
    denoiser.set_upcoming(rows)
    denoiser.draw(_rows(1, 2, sampler="euler_a", steps=3), 2, lambda: None)
    steps = []

    def fail_at_second_step() -> None:
        steps.append(1)
        if len(steps) == 2:
            raise LookupError

    with pytest.raises(LookupError):
        denoiser.draw(rows, 2, fail_at_second_step)
    assert bytes_of(denoiser, rows, 2) == plain
