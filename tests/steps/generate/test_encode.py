"""Pixels become bytes."""

import hashlib

import numpy as np
import pytest

from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.imaging.codecs import hash_pixels
from imagekiln.steps.job.output import Png
from imagekiln.steps.runs.image import DrawnImage, EncodedImage
from tests.runs import picture


def _rgb(height: int, width: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_the_same_picture_gives_the_same_bytes() -> None:
    assert encode_drawn_image(picture(3), Png()) == encode_drawn_image(picture(3), Png())


def test_hashes_are_those_of_the_bytes_and_of_the_bare_pixels() -> None:
    drawn = picture(3)
    assert drawn.rgb is not None
    found = encode_drawn_image(drawn, Png())
    assert found.content is not None
    assert found.sha256 == hashlib.sha256(found.content).hexdigest()
    assert found.pixels_sha256 == hashlib.sha256(drawn.rgb.tobytes()).hexdigest()


def test_pixels_hash_knows_nothing_of_the_encoding_or_the_memory_layout() -> None:
    rgb = _rgb(8, 24)
    assert encode_drawn_image(DrawnImage(0, rgb), Png(level=0)).pixels_sha256 == hash_pixels(
        np.asfortranarray(rgb)
    )
    assert encode_drawn_image(DrawnImage(0, rgb), Png(level=9)).pixels_sha256 == hash_pixels(rgb)


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (10, 200, 30)])
def test_one_flat_colour_is_blank(colour: tuple[int, int, int]) -> None:
    flat = np.full((8, 8, 3), colour, dtype=np.uint8)
    assert encode_drawn_image(DrawnImage(4, flat), Png()) == EncodedImage(
        4, "blank", "every pixel has the same color"
    )


def test_a_single_other_pixel_is_no_blank() -> None:
    almost = np.zeros((8, 8, 3), dtype=np.uint8)
    almost[7, 7, 2] = 1
    assert encode_drawn_image(DrawnImage(0, almost), Png()).status == "ok"


def test_what_the_denoiser_refused_keeps_its_status_and_error() -> None:
    assert encode_drawn_image(
        DrawnImage(2, None, "failed", "ValueError: no"), Png()
    ) == EncodedImage(2, "failed", "ValueError: no")


def test_filtered_pixels_are_not_stored() -> None:
    found = encode_drawn_image(DrawnImage(2, _rgb(8, 8), "filtered", "refused"), Png())
    assert (found.status, found.content, found.sha256) == ("filtered", None, None)
