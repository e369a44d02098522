"""Pixels become bytes, with the hashes by which anybody can check them later."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from imagekiln.steps.codecs import NOTHING, RGB, Notes, written
from imagekiln.steps.encodings import Encoding, suffix
from imagekiln.steps.quality import Quality

Status = Literal["ok", "blank", "filtered", "failed"]


@dataclass(frozen=True, slots=True)
class Picture:
    """What the denoiser gave for one row: RGB uint8 (height, width, 3), or the reason why there is none."""

    place: int
    rgb: RGB | None
    status: Status = "ok"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """One image as it will be stored. Bytes, hashes and what the gates found are there where the status is ok.

    `pixels_sha256` is of the pixels as they were drawn, and `suffix` ends the name of such a file.
    """

    place: int
    status: Status
    error: str | None = None
    content: bytes | None = None
    sha256: str | None = None
    pixels_sha256: str | None = None
    suffix: str = ""
    quality: Quality | None = None


def encode(
    picture: Picture, encoding: Encoding, notes: Notes = NOTHING, sign: Callable[[bytes], bytes] | None = None
) -> Encoded:
    """Encode and hash one picture. One flat colour is `blank`: no model was asked for it."""
    if picture.rgb is None or picture.status != "ok":
        return Encoded(picture.place, picture.status, picture.error)
    if not np.ptp(picture.rgb.reshape(-1, 3), axis=0).any():
        return Encoded(picture.place, "blank", "every pixel has the same colour")
    content = written(picture.rgb, encoding, notes)
    content = sign(content) if sign else content
    digest = hashlib.sha256(content).hexdigest()
    return Encoded(picture.place, "ok", None, content, digest, pixels_hash(picture.rgb), suffix(encoding))


def pixels_hash(rgb: RGB) -> str:
    """SHA-256 of the pixels alone, row by row, whatever the encoding."""
    return hashlib.sha256(np.ascontiguousarray(rgb).tobytes()).hexdigest()
