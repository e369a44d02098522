"""JPEG XL by way of Pillow's plugin, which decodes as it opens: so the size is read here, before it gets the file.

A file of ours is boxes (ISO/IEC 18181-2), among which the codestream may lie in pieces. Bare ones hold no signature.
"""

import io
import struct
from collections.abc import Callable, Iterator
from importlib import import_module

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from imagekiln.steps.encodings import Jxl, require

CODESTREAM = b"\xff\x0a"
CONTAINER = b"\0\0\0\x0cJXL \r\n\x87\n"
HEADER = 16  # bytes of the codestream, among which is its size
RATIOS = {1: (1, 1), 2: (12, 10), 3: (4, 3), 4: (3, 2), 5: (16, 9), 6: (5, 4), 7: (2, 1)}
LENGTHS = (9, 13, 18, 30)  # bits that a side may have


def written(picture: Pillow.Image, encoding: Jxl, notes: dict[str, bytes]) -> bytes:
    """The picture as JPEG XL, made by one thread. `notes` are `exif` and `xmp`. Raises BadInput without the extra."""
    _plug_in()
    sink = io.BytesIO()
    how = {"lossless": encoding.lossless, "quality": encoding.quality, "effort": encoding.effort, "num_threads": 0}
    picture.save(sink, "JXL", use_container=True, **how, **notes)
    return sink.getvalue()


def decode(content: bytes) -> npt.NDArray[np.uint8]:
    """The pixels: first ask `size` how many. Raises OSError or ValueError; BadInput where the extra is not there."""
    _plug_in()
    try:
        with Pillow.open(io.BytesIO(content), formats=["JXL"]) as image:
            return np.asarray(image.convert("RGB"))
    except (RuntimeError, SyntaxError) as error:
        raise ValueError(str(error)) from error


def is_jxl(content: bytes) -> bool:
    """Whether it begins as JPEG XL does."""
    return content.startswith(CONTAINER)


def size(content: bytes) -> tuple[int, int]:
    """Width and height in pixels, without decoding. Raises ValueError where there are none."""
    header = b"".join(_codestream(content))[:HEADER]
    if not header.startswith(CODESTREAM):
        raise ValueError("it is no whole JPEG XL")
    bits = _bits(header[len(CODESTREAM) :])
    read = _eights if bits(1) else _length
    height = read(bits)
    over, under = RATIOS.get(bits(3), (0, 0))
    return (height * over // under if under else read(bits)), height


def _plug_in() -> None:
    require(Jxl())
    import_module("pillow_jxl")  # makes itself known to Pillow


def _codestream(content: bytes) -> Iterator[bytes]:
    """The beginnings of the codestream's pieces, in order."""
    for kind, start in _boxes(content):
        if kind == b"jbrd":  # the plugin would hand such a file's JPEG to whatever reads it
            raise ValueError("it is a JPEG in JPEG XL")
        if kind in (b"jxlc", b"jxlp"):
            begin = start + 4 * (kind == b"jxlp")  # a piece begins with its number
            yield content[begin : begin + HEADER]


def _boxes(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Each box's kind, and where what it holds begins."""
    place = 0
    while place + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        wide = 8 * (length == 1)
        if wide:
            length = int.from_bytes(content[place + 8 : place + 16], "big")
        yield kind, place + 8 + wide
        place = place + length if length else len(content)
        if length and length < 8 + wide:
            raise ValueError("it is no whole JPEG XL")


def _bits(data: bytes) -> Callable[[int], int]:
    """What reads so many bits at a time, the lowest first; zeros after the end."""
    left = int.from_bytes(data, "little")

    def read(count: int) -> int:
        nonlocal left
        found, left = left & ((1 << count) - 1), left >> count
        return found

    return read


def _eights(bits: Callable[[int], int]) -> int:
    return (bits(5) + 1) * 8


def _length(bits: Callable[[int], int]) -> int:
    return bits(LENGTHS[bits(2)]) + 1
