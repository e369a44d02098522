"""One call of a pipeline: what it gave, and the picture of each row in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers.utils import BaseOutput

from imagekiln.steps.codecs import RGB
from imagekiln.steps.drawing import HostCopy
from imagekiln.steps.encode import DrawnImage
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.timing import Spans


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A call of the pipeline: its pixels, which images its safety checker refused, and what it took."""

    host_copy: HostCopy
    safety_flags: Sequence[bool]
    spans: Spans

    def iter_images(self) -> Iterator[tuple[RGB, bool, bool]]:
        """Each image's pixels, whether its numbers were finite, and whether it was refused."""
        return zip(self.host_copy.rgb.numpy(), self.host_copy.finite.tolist(), self.safety_flags, strict=True)


def to_tensor(
    images: "torch.Tensor | np.ndarray[tuple[int, ...], np.dtype[np.float32]]", row: ImageRow
) -> torch.Tensor:
    """Images as float32 (batch, 3, height, width), from tensors or from arrays with the channels last.

    Raises ValueError where they are of another size than the row's.
    """
    found = images.float() if isinstance(images, torch.Tensor) else _channels_first(images)
    height, width = found.shape[-2:]
    if (height, width) != (row.parameters.height, row.parameters.width):
        raise ValueError(f"the model drew {width} x {height} pixels, which is the nearest size that it knows")
    return found


def safety_flags(output: BaseOutput, count: int) -> list[bool]:
    """Which of this many images the pipeline's safety checker refused; none where it has none, or is silent."""
    found = (getattr(output, name, None) for name in ("nsfw_content_detected", "nsfw_detected"))
    return [bool(each) for each in next(filter(None, found), [False] * count)]


def _channels_first(images: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> torch.Tensor:
    return torch.from_numpy(images).float().permute(0, 3, 1, 2)


def to_drawn_image(row: ImageRow, rgb: RGB, good: bool, bad: bool) -> DrawnImage:
    """A row's picture: `good` numbers are finite, a `bad` image was refused."""
    if not good:
        return DrawnImage(row.index_in_part, None, "blank", "the model gave numbers that are not finite")
    if bad:
        return DrawnImage(row.index_in_part, None, "filtered", "the model's safety checker refused it")
    return DrawnImage(row.index_in_part, rgb)
