"""Copy pixels from the device while it denoises the next batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import overload

import numpy as np
import torch
from diffusers.utils import BaseOutput

from imagekiln.steps.generate.diffusion.device import (
    DeviceEvent,
    record_event,
    wait_for_event,
)
from imagekiln.steps.generate.diffusion.patches import mark_shared
from imagekiln.steps.generate.diffusion.profiling import Spans
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.runs.image import DrawnImage, ImageRow

RGBA_CHANNELS = 4
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A batch on the CPU: RGB uint8 (batch, height, width, 3), and which are finite (batch,).

    Neither may be read before `done_event`, if set. `source` keeps the copied tensors alive.
    """

    rgb: torch.Tensor
    finite: torch.Tensor
    done_event: DeviceEvent | None = None
    source: tuple[torch.Tensor, ...] = ()

    def read_rgb(self) -> RGB:
        """Return the pixels, copied if pinned: freeing pinned memory needs the device."""
        rgb: RGB = self.rgb.numpy()
        return rgb if self.done_event is None else rgb.copy()


class PendingBatch(Sequence[DrawnImage]):
    """Images that the device may still be working on.

    Reading one waits for all, and raises TryAgain if the device has failed. Thread-safe.
    """

    def __init__(
        self, count: int, done_event: DeviceEvent, read: Callable[[], list[DrawnImage]]
    ) -> None:
        """Take the event to wait for, and the function that then returns the images."""
        self._count = count
        self._done_event = done_event
        self._read: Callable[[], list[DrawnImage]] | None = read
        self._images: list[DrawnImage] = []
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> DrawnImage: ...
    @overload
    def __getitem__(self, index: slice) -> list[DrawnImage]: ...
    def __getitem__(self, index: int | slice) -> DrawnImage | list[DrawnImage]:
        with self._lock:
            if self._read is not None:
                wait_for_event(self._done_event)
                self._images = self._read()
                self._read = None  # it holds memory of the device
        return self._images[index]


def to_tensor(output: BaseOutput, row: ImageRow) -> torch.Tensor:
    """Convert the images of a pipeline to float32 (batch, 3, height, width) in [0, 1].

    They are the first field of its output. Arrays have channels last. Transparency becomes white,
    as models of such images see it. Raises ValueError for images of another size than the row's.
    """
    images, *_ = output.values()
    if isinstance(images, torch.Tensor):
        tensor = images.float()
    else:
        tensor = torch.from_numpy(images).float().permute(0, 3, 1, 2)
    if tensor.shape[1] == RGBA_CHANNELS:
        alpha = tensor[:, 3:]
        tensor = tensor[:, :3] * alpha + (1 - alpha)
    height, width = tensor.shape[-2:]
    if (height, width) != (row.parameters.height, row.parameters.width):
        raise ValueError(
            f"the model drew {width} x {height} pixels, which is the nearest size that it knows"
        )
    return tensor


def copy_to_host(images: torch.Tensor, stream: torch.cuda.Stream | None, spans: Spans) -> HostCopy:
    """Copy images in [0, 1], float32 (batch, 3, height, width), to the CPU as RGB.

    On CUDA this returns at once. The copy runs on `stream`, beside the next batch.
    """
    with spans.span("copy"):
        rgb = to_uint8(images)
        finite = images.isfinite().flatten(1).all(1)
        if stream is None or not images.is_cuda:
            return HostCopy(rgb.cpu(), finite.cpu())

    stream.wait_stream(torch.cuda.current_stream(images.device))
    with torch.cuda.stream(stream):
        with spans.span("copy"):
            rgb_copy = _copy_to_pinned(rgb)
            finite_copy = _copy_to_pinned(finite)
        return HostCopy(rgb_copy, finite_copy, record_event(), (rgb, finite))


def to_uint8(images: torch.Tensor) -> torch.Tensor:
    """Convert images (batch, 3, height, width) in [0, 1] to RGB uint8 (batch, height, width, 3)."""
    scaled = images.nan_to_num().mul(255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous()


def _copy_to_pinned(source: torch.Tensor) -> torch.Tensor:
    pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    return mark_shared(pinned.copy_(source, non_blocking=True))
