"""Pixels become bytes, with the hashes by which anybody can check them later."""

import hashlib
import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.job import Encoding
from imagekiln.steps.quality import Quality

Status = Literal["ok", "blank", "filtered", "failed"]
RGB = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Picture:
    """What the denoiser gave for one row: RGB uint8 (height, width, 3), or the reason why there is none."""

    place: int
    rgb: RGB | None
    status: Status = "ok"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """One image as it will be stored. Bytes, hashes and what the gates found are there where the status is ok."""

    place: int
    status: Status
    error: str | None = None
    content: bytes | None = None
    sha256: str | None = None
    pixels_sha256: str | None = None
    quality: Quality | None = None


def encode(picture: Picture, encoding: Encoding) -> Encoded:
    """Encode and hash one picture. One flat colour is `blank`: no model was asked for it."""
    if picture.rgb is None or picture.status != "ok":
        return Encoded(picture.place, picture.status, picture.error)
    if not np.ptp(picture.rgb.reshape(-1, 3), axis=0).any():
        return Encoded(picture.place, "blank", "every pixel has the same colour")
    content = png(picture.rgb, encoding.level)
    digest = hashlib.sha256(content).hexdigest()
    return Encoded(picture.place, "ok", None, content, digest, pixels_hash(picture.rgb))


def png(rgb: RGB, level: int) -> bytes:
    """RGB uint8 (height, width, 3) as PNG, by zlib's `level` from 0 to 9."""
    sink = io.BytesIO()
    Pillow.fromarray(rgb).save(sink, "PNG", compress_level=level)
    return sink.getvalue()


def decode(content: bytes) -> RGB:
    """The pixels of a stored image. Raises OSError or ValueError where it is none of ours."""
    with Pillow.open(io.BytesIO(content), formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB"))


def pixels_hash(rgb: RGB) -> str:
    """SHA-256 of the pixels alone, row by row, whatever the encoding."""
    return hashlib.sha256(np.ascontiguousarray(rgb).tobytes()).hexdigest()
