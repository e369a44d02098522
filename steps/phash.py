"""A perceptual hash of 64 bits: pictures that look alike differ in few of them.

The hash is that of C. Zauner, "Implementation and benchmarking of perceptual image hash functions" (2010), as the
library imagehash has it: the picture as 32 x 32 grey pixels, its discrete cosine transform, and for each of the 8 x 8
lowest frequencies whether it is above their median. The transform is done in whole numbers, so that a hash follows
from the pixels alone: in floating point, frequencies that cancel out would get a sign by chance.
"""

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

PHASH_SIDE, PHASH_FREQUENCIES = 32, 8
COSINE_SCALE = 1 << 14  # of the cosines; sums stay far below 2^63


def _low_frequency_cosines() -> npt.NDArray[np.int64]:
    """The lowest frequencies of the transform, (8, 32). The left half is mirrored, so that symmetry cancels out."""
    frequencies, places = np.arange(PHASH_FREQUENCIES)[:, None], np.arange(PHASH_SIDE // 2)[None, :]
    left = np.rint(COSINE_SCALE * np.cos(np.pi * frequencies * (2 * places + 1) / (2 * PHASH_SIDE))).astype(np.int64)
    return np.hstack([left, left[:, ::-1] * np.where(frequencies % 2, -1, 1)])


LOW_FREQUENCY_COSINES = _low_frequency_cosines()


def perceptual_hash(grey: Pillow.Image) -> int:
    """The hash of a picture in mode L, of any size, as a signed number of 64 bits."""
    pixels = np.asarray(grey.resize((PHASH_SIDE, PHASH_SIDE), Pillow.Resampling.LANCZOS), dtype=np.int64)
    low = (LOW_FREQUENCY_COSINES @ pixels @ LOW_FREQUENCY_COSINES.T).ravel()
    middle = np.sort(low)[31:33].sum()  # twice the median
    return int(np.packbits(2 * low > middle).view(">i8")[0])
