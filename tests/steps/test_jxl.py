"""JPEG XL: the size that is read before the plugin gets the file."""

import struct

import pytest

from imagekiln.steps import jxl
from imagekiln.steps.codecs import Notes, decode, written
from imagekiln.steps.encodings import Jxl
from tests.encodings import noise
from tests.texts import chance

NOTES = Notes("a prompt", b"<x/>")
SIDES = [1, 7, 8, 12, 16, 20, 24, 248, 256, 264, 300, 512, 520]


@pytest.mark.parametrize("notes", [Notes(), NOTES], ids=["alone", "with notes"])
@pytest.mark.parametrize("height", SIDES)
def test_size_is_read_without_decoding(height: int, notes: Notes) -> None:
    for width in (1, 8, 16, 24, 320, height, 2 * height, height * 3 // 2 or 1, height * 16 // 9 or 1):
        content = written(noise(height, width), Jxl(effort=1, quality=1), notes)
        assert jxl.size(content) == (width, height)
        assert jxl.is_jxl(content)


def test_sides_up_to_a_thousand_million_are_read() -> None:
    sides = 0 | 3 << 1 | (2**30 - 1) << 3 | 0 << 33 | 3 << 36 | (2**30 - 2) << 38  # large, ratio 0
    codestream = jxl.CODESTREAM + sides.to_bytes(12, "little")
    box = struct.pack(">I4s", 8 + len(codestream), b"jxlc") + codestream
    assert jxl.size(jxl.CONTAINER + box) == (2**30 - 1, 2**30)


def test_a_jpeg_in_disguise_is_refused() -> None:
    content = written(noise(8, 8), Jxl(), NOTES)
    with pytest.raises(ValueError, match="it is a JPEG in JPEG XL"):
        decode(content + struct.pack(">I4s", 8, b"jbrd"))


def test_a_box_that_leads_nowhere_is_no_endless_loop() -> None:
    for length in (2, 7):
        with pytest.raises(ValueError, match="it is no whole JPEG XL"):
            jxl.size(jxl.CONTAINER + struct.pack(">I4s", length, b"jxlc"))
    with pytest.raises(ValueError, match="it is no whole JPEG XL"):
        jxl.size(jxl.CONTAINER + struct.pack(">I4sQ", 1, b"free", 3))


@pytest.mark.parametrize("notes", [Notes(), NOTES], ids=["alone", "with notes"])
def test_damage_ends_in_an_error_or_in_an_image_of_the_same_size(notes: Notes) -> None:
    content, random = written(noise(32, 32), Jxl(), notes), chance(7)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            assert decode(bytes(damaged), (32, 32)).shape == (32, 32, 3)
        except (OSError, ValueError):
            refused += 1
    assert refused
