"""What is measured of every image that is ok: contrast, saturation, and a perceptual hash.

All are taken from a copy that is shrunk by a whole factor until neither side exceeds 256 pixels, each of its pixels
being the mean of a square. Everything is counted in whole numbers: the same pixels give the same figures anywhere.
"""

import math
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.imaging.codecs import RGB


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
    return PixelDifference(
        int(apart.max()), float(apart.mean()), rms, 20 * math.log10(255 / rms) if rms else None
    )


def resize_like(picture: RGB, like: RGB) -> RGB:
    """A picture in the size of another one."""
    height, width = like.shape[:2]
    if picture.shape[:2] == (height, width):
        return picture
    resized: npt.NDArray[np.uint8] = np.asarray(Pillow.fromarray(picture).resize((width, height)))
    return resized


PHASH_SIDE, PHASH_FREQUENCIES = 32, 8
COSINE_SCALE = 1 << 14  # of the cosines; sums stay far below 2^63


def _low_frequency_cosines() -> npt.NDArray[np.int64]:
    """The lowest frequencies of the transform, (8, 32). The left half is mirrored, so that symmetry cancels out."""
    frequencies, places = np.arange(PHASH_FREQUENCIES)[:, None], np.arange(PHASH_SIDE // 2)[None, :]
    left = np.rint(
        COSINE_SCALE * np.cos(np.pi * frequencies * (2 * places + 1) / (2 * PHASH_SIDE))
    ).astype(np.int64)
    return np.hstack([left, left[:, ::-1] * np.where(frequencies % 2, -1, 1)])


LOW_FREQUENCY_COSINES = _low_frequency_cosines()


def perceptual_hash(grey: Pillow.Image) -> int:
    """The hash of a picture in mode L, of any size, as a signed number of 64 bits."""
    pixels = np.asarray(
        grey.resize((PHASH_SIDE, PHASH_SIDE), Pillow.Resampling.LANCZOS), dtype=np.int64
    )
    low = (LOW_FREQUENCY_COSINES @ pixels @ LOW_FREQUENCY_COSINES.T).ravel()
    middle = np.sort(low)[31:33].sum()  # twice the median
    return int(np.packbits(2 * low > middle).view(">i8")[0])


MAX_MEASURED_SIDE = 256
VIVID_VALUE = 230  # of 255: 0.9
MAX_WHITE_TENTHS = (
    10  # a saturation of 0.9 or more: the least channel is at most a tenth of the largest
)


@dataclass(frozen=True, slots=True)
class ImageMeasures:
    """Contrast from 0 to 0.5, saturation from 0 to 1, and the signed 64 bits of the perceptual hash."""

    contrast: float
    saturation: float
    phash: int


def measure_image(rgb: npt.NDArray[np.uint8]) -> ImageMeasures:
    """Measure RGB uint8 (height, width, 3)."""
    image = Pillow.fromarray(rgb)
    small = image.reduce(max(1, -(-max(image.size) // MAX_MEASURED_SIDE)))
    grey = small.convert("L")
    return ImageMeasures(_contrast(grey), _saturation(np.asarray(small)), perceptual_hash(grey))


def _contrast(grey: Pillow.Image) -> float:
    """The standard deviation of luma (ITU-R BT.601) in [0, 1]: RMS contrast, E. Peli, "Contrast in complex images"."""
    counts = grey.histogram()
    total = sum(value * count for value, count in enumerate(counts))
    squares = sum(value * value * count for value, count in enumerate(counts))
    pixels = sum(counts)
    return sqrt(pixels * squares - total * total) / pixels / 255


def _saturation(rgb: npt.NDArray[np.uint8]) -> float:
    """The share of pixels whose saturation and value, as in HSV, are both at least 0.9."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    vivid = (most >= VIVID_VALUE) & (least <= most // MAX_WHITE_TENTHS)
    return int(np.count_nonzero(vivid)) / vivid.size
