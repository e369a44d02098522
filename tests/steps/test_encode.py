"""Pixels become bytes."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from imagekiln.steps.encode import Encoded, Picture, decode, encode, pixels_hash, png
from imagekiln.steps.job import Encoding
from tests.runs import picture


def _rgb(height: int, width: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 24), (17, 5)])
def test_pixels_come_back_as_they_were(height: int, width: int, level: int) -> None:
    rgb = _rgb(height, width)
    assert np.array_equal(decode(png(rgb, level)), rgb)


def test_other_readers_see_the_same_pixels() -> None:
    rgb = _rgb(8, 24)
    with Image.open(io.BytesIO(png(rgb, 1))) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (24, 8))
        assert np.array_equal(np.asarray(image), rgb)


def test_the_same_picture_gives_the_same_bytes() -> None:
    assert encode(picture(3), Encoding()) == encode(picture(3), Encoding())


def test_hashes_are_those_of_the_bytes_and_of_the_bare_pixels() -> None:
    drawn = picture(3)
    assert drawn.rgb is not None
    found = encode(drawn, Encoding())
    assert found.content is not None
    assert found.sha256 == hashlib.sha256(found.content).hexdigest()
    assert found.pixels_sha256 == hashlib.sha256(drawn.rgb.tobytes()).hexdigest()


def test_pixels_hash_knows_nothing_of_the_encoding_or_the_memory_layout() -> None:
    rgb = _rgb(8, 24)
    assert encode(Picture(0, rgb), Encoding(level=0)).pixels_sha256 == pixels_hash(np.asfortranarray(rgb))
    assert encode(Picture(0, rgb), Encoding(level=9)).pixels_sha256 == pixels_hash(rgb)


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (10, 200, 30)])
def test_one_flat_colour_is_blank(colour: tuple[int, int, int]) -> None:
    flat = np.full((8, 8, 3), colour, dtype=np.uint8)
    assert encode(Picture(4, flat), Encoding()) == Encoded(4, "blank", "every pixel has the same colour")


def test_a_single_other_pixel_is_no_blank() -> None:
    almost = np.zeros((8, 8, 3), dtype=np.uint8)
    almost[7, 7, 2] = 1
    assert encode(Picture(0, almost), Encoding()).status == "ok"


def test_what_the_denoiser_refused_keeps_its_status_and_error() -> None:
    assert encode(Picture(2, None, "failed", "ValueError: no"), Encoding()) == Encoded(2, "failed", "ValueError: no")


def test_filtered_pixels_are_not_stored() -> None:
    found = encode(Picture(2, _rgb(8, 8), "filtered", "refused"), Encoding())
    assert (found.status, found.content, found.sha256) == ("filtered", None, None)


@pytest.mark.parametrize("content", [b"", b"GIF89a", png(_rgb(8, 8), 1)[:60]], ids=["nothing", "a gif", "half"])
def test_what_is_no_whole_png_does_not_decode(content: bytes) -> None:
    with pytest.raises((OSError, ValueError)):
        decode(content)
