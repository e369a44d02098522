"""Measures of pixels: contrast, saturation and a perceptual hash of one image, and how two differ.

An image is measured on a copy that is reduced by a whole factor until neither side exceeds 256
pixels. Sums are of whole numbers, so that the same pixels give the same figures on any machine.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.imaging.codecs import RGB

MAX_MEASURED_SIDE = 256
VIVID_VALUE = 230  # of 255: 0.9
# A saturation of 0.9 or more: the least channel is at most a tenth of the greatest.
VIVID_CHANNEL_RATIO = 10
PHASH_SIDE = 32
PHASH_FREQUENCIES = 8
COSINE_SCALE = 1 << 14  # keeps sums far below 2^63


@dataclass(frozen=True, slots=True)
class ImageMeasures:
    """Contrast from 0 to 0.5, saturation from 0 to 1, and the hash as a signed 64-bit number."""

    contrast: float
    saturation: float
    phash: int


@dataclass(frozen=True, slots=True)
class PixelDifference:
    """Differences of pixels, in levels of 0 to 255; `psnr` is in dB, None where nothing differs."""

    largest: int
    mean: float
    rms: float
    psnr: float | None


def measure_image(rgb: RGB) -> ImageMeasures:
    """Measure RGB uint8 (height, width, 3)."""
    image = Pillow.fromarray(rgb)
    factor = math.ceil(max(image.size) / MAX_MEASURED_SIDE)
    small = image.reduce(factor)
    gray = small.convert("L")
    return ImageMeasures(_contrast(gray), _saturation(np.asarray(small)), perceptual_hash(gray))


def compare_pixels(one: RGB, other: RGB) -> PixelDifference:
    """Compare images of one size."""
    difference = np.abs(one.astype(np.int16) - other.astype(np.int16))
    rms = math.sqrt(float(np.mean(np.square(difference, dtype=np.float64))))
    psnr = 20 * math.log10(255 / rms) if rms else None
    return PixelDifference(int(difference.max()), float(difference.mean()), rms, psnr)


def resize_like(image: RGB, reference: RGB) -> RGB:
    """The image in the size of another one."""
    height, width = reference.shape[:2]
    if image.shape[:2] == (height, width):
        return image
    resized: RGB = np.asarray(Pillow.fromarray(image).resize((width, height)))
    return resized


def _low_frequency_cosines() -> npt.NDArray[np.int64]:
    """The lowest frequencies of the discrete cosine transform, (8, 32), as whole numbers.

    The right half mirrors the left one, so that symmetry cancels out exactly.
    """
    frequencies = np.arange(PHASH_FREQUENCIES)[:, None]
    positions = np.arange(PHASH_SIDE // 2)[None, :]
    angles = np.pi * frequencies * (2 * positions + 1) / (2 * PHASH_SIDE)
    left = np.rint(COSINE_SCALE * np.cos(angles)).astype(np.int64)
    right = left[:, ::-1] * np.where(frequencies % 2, -1, 1)
    return np.hstack([left, right])


LOW_FREQUENCY_COSINES = _low_frequency_cosines()


def perceptual_hash(gray: Pillow.Image) -> int:
    """The hash of an image in mode L, of any size, as a signed 64-bit number."""
    small = gray.resize((PHASH_SIDE, PHASH_SIDE), Pillow.Resampling.LANCZOS)
    pixels = np.asarray(small, dtype=np.int64)
    coefficients = (LOW_FREQUENCY_COSINES @ pixels @ LOW_FREQUENCY_COSINES.T).ravel()
    twice_median = np.sort(coefficients)[31:33].sum()
    return int(np.packbits(2 * coefficients > twice_median).view(">i8")[0])


def _contrast(gray: Pillow.Image) -> float:
    """RMS contrast (E. Peli, "Contrast in complex images"): the standard deviation of luma.

    Luma is that of ITU-R BT.601, from 0 to 1.
    """
    counts = gray.histogram()
    pixels = sum(counts)
    total = sum(value * count for value, count in enumerate(counts))
    squares = sum(value * value * count for value, count in enumerate(counts))
    return math.sqrt(pixels * squares - total * total) / pixels / 255


def _saturation(rgb: RGB) -> float:
    """The share of pixels whose saturation and value, as in HSV, are both at least 0.9."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    # Channel by channel: numpy's max and min along an axis of three take sixty times as long.
    greatest = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    vivid = (greatest >= VIVID_VALUE) & (least <= greatest // VIVID_CHANNEL_RATIO)
    return int(np.count_nonzero(vivid)) / vivid.size
