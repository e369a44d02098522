"""Untrusted files, as pixels that a viewer would show."""

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pillow

from imagekiln.steps.imaging.input_images import open_input_image, resize_to_cover

RGB = npt.NDArray[np.uint8]
RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def _two_colors(mode: str = "RGB") -> Pillow.Image:
    """Red on the left and green on the right, 16 wide and 8 high."""
    picture = Pillow.new("RGB", (16, 8), RED)
    picture.paste(GREEN, (8, 0, 16, 8))
    return picture.convert(mode)


def _pixels(picture: Pillow.Image, kind: str = "PNG", **options: object) -> RGB:
    sink = io.BytesIO()
    picture.save(sink, kind, **options)
    image = open_input_image(sink.getvalue())
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_an_image_is_rotated_as_its_exif_says(kind: str, orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    pixels = _pixels(_two_colors(), kind, exif=exif)
    is_upright = orientation > 4
    assert pixels.shape == ((16, 8, 3) if is_upright else (8, 16, 3))
    first, last = pixels[1, 1].astype(int), pixels[-2, -2].astype(int)
    red_first = orientation in (1, 4, 5, 6)
    assert (first[0] > first[1]) == red_first
    assert (last[0] > last[1]) != red_first


@pytest.mark.parametrize("mode", ["P", "CMYK", "RGBA"])
def test_colors_are_the_same_in_every_mode(mode: str) -> None:
    pixels = _pixels(_two_colors(mode), "JPEG" if mode == "CMYK" else "PNG")
    assert np.abs(pixels.astype(int) - np.asarray(_two_colors())).max() < 10


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode: str) -> None:
    if mode == "P":
        pixels = _pixels(_two_colors("P"), transparency=_two_colors("P").getpixel((0, 0)))
    else:
        pixels = _pixels(Pillow.new(mode, (16, 8)))
    assert tuple(pixels[4, 2]) == WHITE


def test_an_image_is_scaled_to_cover_and_cropped_around_its_center() -> None:
    pixels = np.asarray(resize_to_cover(_two_colors(), 4, 4))
    assert pixels.shape == (4, 4, 3)
    assert tuple(pixels[2, 0]) == RED
    assert tuple(pixels[2, 3]) == GREEN
