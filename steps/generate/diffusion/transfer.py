"""Pixels on their way from the device: the next batch is begun while they are still being drawn and copied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, overload

import torch

from imagekiln.steps.generate.diffusion.device import device_error, record_event
from imagekiln.steps.generate.diffusion.profiling import Spans
from imagekiln.steps.runs.image import DrawnImage


class DeviceEvent(Protocol):
    """What the device comes to when all that was asked of it before is done."""

    def synchronize(self) -> None:
        """Wait for it. Raises what went wrong on the device meanwhile."""


@dataclass(frozen=True, slots=True)
class HostCopy:
    """One batch's pixels, RGB uint8 (batch, height, width, 3), and which images were finite (batch,), on the CPU.

    Neither may be read before `over`, None where they are there. `source` keeps what is being copied.
    """

    rgb: torch.Tensor
    finite: torch.Tensor
    done_event: DeviceEvent | None = None
    source: tuple[torch.Tensor, ...] = ()


class PendingBatch(Sequence[DrawnImage]):
    """Pictures that the device may still be drawing: how many is known at once, to look at one waits for all.

    Looking raises TryAgain where the device failed meanwhile. May be looked at from several threads.
    """

    def __init__(self, count: int, over: DeviceEvent, read: Callable[[], list[DrawnImage]]) -> None:
        """Take what they are waiting for, and what then gives them."""
        self._count, self._over = count, over
        self._read: Callable[[], list[DrawnImage]] | None = read
        self._pictures: list[DrawnImage] = []
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> DrawnImage: ...
    @overload
    def __getitem__(self, place: slice) -> list[DrawnImage]: ...
    def __getitem__(self, place: int | slice) -> DrawnImage | list[DrawnImage]:
        with self._lock:
            if self._read is not None:
                wait_for_event(self._over)
                self._pictures, self._read = (
                    self._read(),
                    None,
                )  # and nothing keeps the device's memory any more
        return self._pictures[place]


def count_pending(pictures: Sequence[DrawnImage]) -> int:
    """How many of the pictures, just begun, the device may still be at."""
    return len(pictures) if isinstance(pictures, PendingBatch) else 0


def wait_for_event(over: DeviceEvent) -> None:
    """Wait for the device. Raises TryAgain where it failed."""
    try:
        over.synchronize()
    except Exception as error:  # whatever was asked of it before, its pixels are lost
        raise device_error(error) from error


def copy_to_host(images: torch.Tensor, stream: torch.cuda.Stream | None, spans: Spans) -> HostCopy:
    """Have images in [0, 1], float32 (batch, 3, height, width), made to pixels and copied to the CPU.

    On CUDA nothing is waited for: the copy goes to pinned memory on `stream`, beside what comes next on the device.
    """
    with spans.span("copy"):
        source = to_uint8(images), images.isfinite().flatten(1).all(1)
        if stream is None or not images.is_cuda:
            return HostCopy(source[0].cpu(), source[1].cpu())
    stream.wait_stream(torch.cuda.current_stream(images.device))
    with torch.cuda.stream(stream):
        with spans.span("copy"):
            rgb, finite = map(_copy_to_pinned, source)
        return HostCopy(rgb, finite, record_event(), source)


def to_uint8(images: torch.Tensor) -> torch.Tensor:
    """Images in [0, 1], (batch, 3, height, width), as RGB uint8 (batch, height, width, 3) on their device."""
    scaled = images.nan_to_num().mul(255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous()


def _copy_to_pinned(source: torch.Tensor) -> torch.Tensor:
    return torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(
        source, non_blocking=True
    )
