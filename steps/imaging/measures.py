"""Measures of pixels: of one image, and of the difference between two.

Except for sharpness, measures use a copy that is reduced by a whole factor until neither side
exceeds 256 pixels. Sums are of integers, so that the same pixels give the same figures on any
machine.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.imaging.codecs import RGB

MAX_MEASURED_SIDE = 256
CHANNEL_LEVELS = 256
VIVID_VALUE = 230  # of 255: 0.9
# A saturation of at least 0.9: the lowest channel is at most a tenth of the highest.
VIVID_CHANNEL_RATIO = 10
PHASH_SIDE = 32
PHASH_FREQUENCIES = 8
COSINE_SCALE = 1 << 14  # keeps sums far below 2^63


@dataclass(frozen=True, slots=True)
class ImageMeasures:
    """Contrast from 0 to 0.5, saturation from 0 to 1, and the perceptual hash, a signed int64."""

    contrast: float
    saturation: float
    phash: int


@dataclass(frozen=True, slots=True)
class PixelDifference:
    """Differences of pixels, in levels of 0 to 255; `psnr` is in dB, None if nothing differs."""

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
    return ImageMeasures(
        contrast=_contrast(small),
        saturation=_saturation(small),
        phash=perceptual_hash(gray),
    )


def measure_sharpness(rgb: RGB) -> float:
    """Compute the variance of the Laplacian of RGB uint8 (height, width, 3), as luma of 0 to 255.

    It follows J. L. Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", and is
    high for steep edges and noise. It uses all pixels, since reducing an image would sharpen it.
    """
    luma = np.asarray(Pillow.fromarray(rgb).convert("L"), dtype=np.int16)
    padded = np.pad(luma, 1, mode="edge")
    neighbors = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    laplacian = (neighbors - 4 * luma).astype(np.int64)
    total = int(laplacian.sum())
    squares = int(np.square(laplacian).sum())
    return (laplacian.size * squares - total * total) / laplacian.size**2


def compare_pixels(one: RGB, other: RGB) -> PixelDifference:
    """Compare the pixels of two images of the same size."""
    difference = np.abs(one.astype(np.int16) - other.astype(np.int16))
    squares = np.square(difference, dtype=np.float64)
    rms = math.sqrt(float(squares.mean()))
    return PixelDifference(
        largest=int(difference.max()),
        mean=float(difference.mean()),
        rms=rms,
        psnr=20 * math.log10(255 / rms) if rms else None,
    )


def resize_like(image: RGB, reference: RGB) -> RGB:
    """Resize an image to the size of another."""
    if image.shape == reference.shape:
        return image
    height, width, _ = reference.shape
    resized = Pillow.fromarray(image).resize((width, height))
    pixels: RGB = np.asarray(resized)
    return pixels


def _low_frequency_cosines() -> npt.NDArray[np.int64]:
    """Build the lowest frequencies of the discrete cosine transform, (8, 32), as integers.

    The right half mirrors the left one, so that symmetric images cancel out exactly.
    """
    frequencies = np.arange(PHASH_FREQUENCIES).reshape(-1, 1)
    positions = np.arange(PHASH_SIDE // 2)
    odd_positions = 2 * positions + 1
    angles = np.pi * frequencies * odd_positions / (2 * PHASH_SIDE)

    cosines = COSINE_SCALE * np.cos(angles)
    left = np.rint(cosines).astype(np.int64)
    is_odd = frequencies % 2 == 1
    mirrored = np.fliplr(left)
    right = np.where(is_odd, -mirrored, mirrored)
    return np.hstack([left, right])


LOW_FREQUENCY_COSINES = _low_frequency_cosines()


def perceptual_hash(gray: Pillow.Image) -> int:
    """Compute the hash of an image in mode L, of any size, as a signed 64-bit integer."""
    small = gray.resize((PHASH_SIDE, PHASH_SIDE), Pillow.Resampling.LANCZOS)
    pixels = np.asarray(small, dtype=np.int64)
    transform = LOW_FREQUENCY_COSINES @ pixels @ LOW_FREQUENCY_COSINES.T
    coefficients = transform.ravel()

    middle = np.sort(coefficients)[31:33]
    twice_median = middle.sum()
    bits = 2 * coefficients > twice_median
    packed = np.packbits(bits).tobytes()
    return int.from_bytes(packed, "big", signed=True)


def _contrast(image: Pillow.Image) -> float:
    """Compute the RMS contrast of E. Peli, "Contrast in complex images", of three color channels.

    It is the root of the mean variance of the channels, from 0 to 1 each. For gray pixels it equals
    the contrast of luma. Unlike luma, it distinguishes colors of the same brightness.
    """
    pixels = image.width * image.height
    counts = image.histogram()
    channels = len(counts) // CHANNEL_LEVELS
    scaled_variances = 0
    for start in range(0, len(counts), CHANNEL_LEVELS):
        channel_counts = counts[start : start + CHANNEL_LEVELS]
        scaled_variances += _scaled_variance(channel_counts)
    return math.sqrt(scaled_variances / channels) / pixels / 255


def _scaled_variance(counts: list[int]) -> int:
    """Compute the variance of one channel, times the square of the number of pixels."""
    total = 0
    squares = 0
    for value, count in enumerate(counts):
        total += value * count
        squares += value * value * count
    return sum(counts) * squares - total * total


def _saturation(image: Pillow.Image) -> float:
    """Compute the share of pixels whose saturation and value in HSV are both at least 0.9."""
    # By channel, since numpy's max and min along an axis of length 3 take sixty times as long.
    red, green, blue = (np.asarray(channel) for channel in image.split())
    greatest = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)

    bright = greatest >= VIVID_VALUE
    saturated = least <= greatest // VIVID_CHANNEL_RATIO
    vivid = np.count_nonzero(bright & saturated)
    return int(vivid) / (image.width * image.height)
