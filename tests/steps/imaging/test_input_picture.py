"""Strangers' files made into pixels as a viewer shows them."""

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pillow

from imagekiln.steps.imaging.input_images import open_input_image, resize_to_cover

RGB = npt.NDArray[np.uint8]
RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def _two(mode: str = "RGB") -> Pillow.Image:
    """Red on the left and green on the right, 16 wide and 8 high."""
    picture = Pillow.new("RGB", (16, 8), RED)
    picture.paste(GREEN, (8, 0, 16, 8))
    return picture.convert(mode)


def _pixels(picture: Pillow.Image, kind: str = "PNG", **options: object) -> RGB:
    sink = io.BytesIO()
    picture.save(sink, kind, **options)
    found = open_input_image(sink.getvalue())
    assert found.mode == "RGB"
    return np.asarray(found)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_turned_as_its_exif_says(kind: str, orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    found = _pixels(_two(), kind, exif=exif)
    turned = orientation > 4
    assert found.shape == ((16, 8, 3) if turned else (8, 16, 3))
    first, last = found[1, 1].astype(int), found[-2, -2].astype(int)
    red_first = orientation in (1, 4, 5, 6)
    assert (first[0] > first[1]) == red_first
    assert (last[0] > last[1]) != red_first


@pytest.mark.parametrize("mode", ["P", "CMYK", "RGBA"])
def test_colours_are_the_same_in_every_mode(mode: str) -> None:
    found = _pixels(_two(mode), "JPEG" if mode == "CMYK" else "PNG")
    assert np.abs(found.astype(int) - np.asarray(_two())).max() < 10


def test_sixteen_bits_of_grey_keep_their_highest() -> None:
    grey = np.linspace(0, 65_535, 16, dtype=np.uint16).reshape(1, 16)
    assert _pixels(Pillow.fromarray(grey))[0, :, 0].tolist() == (grey[0] >> 8).tolist()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    if mode == "P":
        found = _pixels(_two("P"), transparency=_two("P").getpixel((0, 0)))
    else:
        found = _pixels(Pillow.new(mode, (16, 8)))
    assert tuple(found[4, 2]) == WHITE


def test_the_first_of_several_frames_counts() -> None:
    assert (
        tuple(_pixels(_two(), save_all=True, append_images=[Pillow.new("RGB", (16, 8))])[4, 2])
        == RED
    )


def test_a_picture_is_scaled_to_cover_and_cut_around_its_middle() -> None:
    found = np.asarray(resize_to_cover(_two(), 4, 4))
    assert found.shape == (4, 4, 3)
    assert tuple(found[2, 0]) == RED
    assert tuple(found[2, 3]) == GREEN


def test_a_picture_of_the_right_size_keeps_every_pixel() -> None:
    assert resize_to_cover(_two(), 16, 8) is not None
    assert np.array_equal(np.asarray(resize_to_cover(_two(), 16, 8)), np.asarray(_two()))
