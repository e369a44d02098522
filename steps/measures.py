"""What is measured of every image that is ok: contrast, saturation, and a perceptual hash.

All are taken from a copy that is shrunk by a whole factor until neither side exceeds 256 pixels, each of its pixels
being the mean of a square. Everything is counted in whole numbers: the same pixels give the same figures anywhere.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.phash import perceptual_hash

MAX_MEASURED_SIDE = 256
VIVID_VALUE = 230  # of 255: 0.9
MAX_WHITE_TENTHS = 10  # a saturation of 0.9 or more: the least channel is at most a tenth of the largest


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
