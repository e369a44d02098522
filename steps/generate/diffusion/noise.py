"""The noise of images: each from a generator of its own on the CPU, so that none depends on others.

It is drawn ahead in a thread, and copied without a wait: the device always has work queued.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

import torch
from diffusers.utils.torch_utils import randn_tensor

from imagekiln.steps.generate.diffusion.patches import mark_shared
from imagekiln.steps.runs.image import ImageRow

NOISE_THREAD = "noise"  # the name that its thread begins with
Generators = list[torch.Generator]


@dataclass(frozen=True, slots=True)
class BatchNoise:
    """The generators of a batch, and the first noise drawn from them."""

    generators: Generators
    latents: torch.Tensor


@dataclass(frozen=True, slots=True)
class _StepNoise:
    """The noise of one step of a batch, as the scheduler asks for it."""

    shape: tuple[int, ...]
    generators: Generators
    device: torch.device
    dtype: torch.dtype | None

    def draw(self) -> torch.Tensor:
        noise: torch.Tensor = randn_tensor(self.shape, self.generators, dtype=self.dtype)
        return to_pinned(noise, self.device)


class NoisePrefetcher:
    """Draws noise in a thread, one and the same until `close`: of the next batch and the next step.

    Generators give the same numbers in the same order as without it.
    """

    def __init__(self) -> None:
        """Start without a thread."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=NOISE_THREAD)
        self._batch: tuple[Sequence[ImageRow], Future[BatchNoise]] | None = None
        self._step: tuple[_StepNoise, list[torch.Tensor], Future[torch.Tensor]] | None = None

    def start(
        self, rows: Sequence[ImageRow], draw: Callable[[Sequence[ImageRow]], BatchNoise]
    ) -> None:
        """Begin to draw the noise of the batch that is likely to be next."""
        self._batch = rows, self._worker.submit(draw, rows)

    def take(self, rows: Sequence[ImageRow]) -> BatchNoise | None:
        """The noise of a batch of these rows, once; None if it was not drawn ahead."""
        if self._batch is None or self._batch[0] != rows:
            return None
        _, pending = self._batch
        self._batch = None
        with suppress(Exception):  # raised again where it becomes that of the batch
            return pending.result()
        return None

    def draw_step(
        self,
        shape: Sequence[int],
        generator: Generators | torch.Generator | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
    ) -> torch.Tensor:
        """Stand in for `randn_tensor` at a step, and begin to draw the like for the next one.

        An image's generators are made anew for each batch, so nobody misses what is drawn after the
        last step.
        """
        if not isinstance(generator, list) or device is None:
            noise: torch.Tensor = randn_tensor(shape, generator, device, dtype, layout)
            return noise
        request = _StepNoise(tuple(shape), generator, device, dtype)
        noise = self._take_step(request)
        states = [each.get_state() for each in generator]
        self._step = request, states, self._worker.submit(request.draw)
        return to_device(noise, device)

    def close(self) -> None:
        """End the thread after the noise at hand."""
        self._worker.shutdown(cancel_futures=True)

    def _take_step(self, request: _StepNoise) -> torch.Tensor:
        if self._step is None:
            return request.draw()
        expected, states, pending = self._step
        self._step = None
        if request == expected:
            return pending.result()
        wait([pending])
        for generator, state in zip(expected.generators, states, strict=True):
            generator.set_state(state)
        return request.draw()


def to_pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor in memory from which copies to the device need not wait, if that is a GPU."""
    return mark_shared(tensor.pin_memory()) if device.type == "cuda" else tensor


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of `to_pinned` on a device, without a wait for the batch that runs there."""
    return tensor.to(device, non_blocking=device.type == "cuda")
