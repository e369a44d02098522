"""Pixels become bytes, with the hashes by which anybody can check them later."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from imagekiln.steps.codecs import NO_METADATA, RGB, EmbeddedMetadata, encode_image
from imagekiln.steps.encodings import Encoding, file_suffix
from imagekiln.steps.quality import ImageQuality

ImageStatus = Literal["ok", "blank", "filtered", "failed"]


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """What the denoiser gave for one row: RGB uint8 (height, width, 3), or the reason why there is none."""

    index_in_part: int
    rgb: RGB | None
    status: ImageStatus = "ok"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image as it will be stored. Bytes, hashes and what the gates found are there where the status is ok.

    `pixels_sha256` is of the pixels as they were drawn, and `suffix` ends the name of such a file.
    """

    index_in_part: int
    status: ImageStatus
    error: str | None = None
    content: bytes | None = None
    sha256: str | None = None
    pixels_sha256: str | None = None
    suffix: str = ""
    quality: ImageQuality | None = None


def encode_drawn_image(
    picture: DrawnImage,
    encoding: Encoding,
    notes: EmbeddedMetadata = NO_METADATA,
    sign: Callable[[bytes], bytes] | None = None,
) -> EncodedImage:
    """Encode and hash one picture. One flat colour is `blank`: no model was asked for it."""
    if picture.rgb is None or picture.status != "ok":
        return EncodedImage(picture.index_in_part, picture.status, picture.error)
    if not np.ptp(picture.rgb.reshape(-1, 3), axis=0).any():
        return EncodedImage(picture.index_in_part, "blank", "every pixel has the same colour")
    content = encode_image(picture.rgb, encoding, notes)
    content = sign(content) if sign else content
    digest = hashlib.sha256(content).hexdigest()
    return EncodedImage(
        picture.index_in_part, "ok", None, content, digest, hash_pixels(picture.rgb), file_suffix(encoding)
    )


def hash_pixels(rgb: RGB) -> str:
    """SHA-256 of the pixels alone, row by row, whatever the encoding."""
    return hashlib.sha256(np.ascontiguousarray(rgb).tobytes()).hexdigest()
