"""Each kind of encoding with settings that differ most, and pictures to encode."""

import numpy as np

from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.output import Encoding, Jpeg, Png, Webp

LOSSLESS: tuple[Encoding, ...] = (Png(), Webp(lossless=True))
LOSSY: tuple[Encoding, ...] = (
    Jpeg(),
    Jpeg(quality=100),
    Jpeg(quality=1, subsampling=420),
    Webp(),
    Webp(quality=100),
)
ALL = (*LOSSLESS, *LOSSY)
KINDS: tuple[Encoding, ...] = (Png(), Jpeg(), Webp())


def encoding_label(encoding: Encoding) -> str:
    """The settings of an encoding, as the id of a test."""
    return "-".join(str(value) for value in encoding.model_dump().values())


def noise(height: int, width: int) -> RGB:
    """RGB uint8 (height, width, 3) that no encoding makes small."""
    return np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)
