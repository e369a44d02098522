"""How alike two pictures are."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.codecs import RGB


@dataclass(frozen=True, slots=True)
class PixelDifference:
    """Differences of pixels, in levels of 0 to 255. `psnr` is in decibels, and None where nothing differs."""

    largest: int
    mean: float
    rms: float
    psnr: float | None


def compare_pixels(one: RGB, other: RGB) -> PixelDifference:
    """Compare pictures of one size."""
    apart = np.abs(one.astype(np.int16) - other.astype(np.int16))
    rms = math.sqrt(float(np.mean(np.square(apart, dtype=np.float64))))
    return PixelDifference(int(apart.max()), float(apart.mean()), rms, 20 * math.log10(255 / rms) if rms else None)


def resize_like(picture: RGB, like: RGB) -> RGB:
    """A picture in the size of another one."""
    height, width = like.shape[:2]
    if picture.shape[:2] == (height, width):
        return picture
    resized: npt.NDArray[np.uint8] = np.asarray(Pillow.fromarray(picture).resize((width, height)))
    return resized
