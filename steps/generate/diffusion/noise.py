"""Draw the noise of the next batch and the next step ahead, in a thread, on the CPU.

At the last moment, copying it would wait for all that is queued on the device.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import torch
from diffusers.utils.torch_utils import randn_tensor

from imagekiln.steps.generate.diffusion.patches import mark_shared

T = TypeVar("T")
Generators = list[torch.Generator]
StepNoise = tuple[torch.Tensor, Generators]  # and the generators after it


class DrawnAhead(Generic[T]):
    """A value that a thread prepares for an expected request."""

    def __init__(self) -> None:
        """Start without a thread."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._expected: tuple[object, Future[T]] | None = None

    def start(self, request: object, draw: Callable[[], T]) -> None:
        """Begin to draw what this request will ask for."""
        self._expected = request, self._worker.submit(draw)

    def take(self, request: object) -> T | None:
        """Return what was drawn for exactly this request, once; None if nothing was."""
        if self._expected is None:
            return None
        expected, pending = self._expected
        if expected != request:
            return None
        self._expected = None
        with suppress(Exception):  # raised again where it becomes that of the batch
            return pending.result()
        return None

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown(cancel_futures=True)


def draw_step_noise(
    ahead: DrawnAhead[StepNoise],
    shape: Sequence[int],
    generator: Generators | None,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Draw a step's noise as `randn_tensor` does, and have the like drawn for the next step."""
    if not isinstance(generator, list):
        noise: torch.Tensor = randn_tensor(shape, generator, device, dtype)
        return noise
    request = (shape, generator, device, dtype)
    draw = partial(_draw_by_copies, *request)
    drawn = ahead.take(request)
    if drawn is None:
        drawn = draw()
    noise, generator[:] = drawn
    ahead.start(request, draw)
    return noise.to(device, non_blocking=noise.is_pinned())


def _draw_by_copies(
    shape: Sequence[int], generators: Generators, device: torch.device, dtype: torch.dtype | None
) -> StepNoise:
    """Draw from copies of the generators, since nobody may take what is drawn."""
    copies = [generator.clone_state() for generator in generators]
    return pin_for(device, randn_tensor(shape, copies, dtype=dtype)), copies


def pin_for(device: torch.device, noise: torch.Tensor) -> torch.Tensor:
    """The noise in memory from which copies to this device need not wait, if that is a GPU."""
    return mark_shared(noise.pin_memory()) if device.type == "cuda" else noise
