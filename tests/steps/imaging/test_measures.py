"""Measures of pixels: contrast, saturation, the perceptual hash, and how two images differ."""

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageEnhance

from imagekiln.steps.imaging.measures import (
    measure_image,
    measure_sharpness,
    perceptual_hash,
)


def _stripes(*columns: tuple[int, int, int], side: int = 64) -> npt.NDArray[np.uint8]:
    """An image of upright stripes."""
    return np.repeat(np.array([columns], np.uint8), side // len(columns), axis=1).repeat(
        side, axis=0
    )


@pytest.mark.parametrize(
    ("rgb", "contrast"),
    [
        (_stripes((9, 9, 9), (9, 9, 9)), 0.0),
        (_stripes((100, 100, 100), (151, 151, 151)), 0.1),
        (_stripes((255, 165, 0), (0, 255, 255)), 0.42),  # about the same luma
    ],
)
def test_contrast_is_the_root_of_the_mean_variance_of_the_channels(
    rgb: npt.NDArray[np.uint8], contrast: float
) -> None:
    assert measure_image(rgb).contrast == pytest.approx(contrast, abs=1 / 255)


@pytest.mark.parametrize(
    ("rgb", "saturation"),
    [
        (_stripes((255, 0, 0), (0, 0, 255)), 1.0),
        (_stripes((255, 26, 26), (229, 0, 0)), 0.0),
        (_stripes((255, 0, 255), (128, 128, 128)), 0.5),
    ],
)
def test_saturation_is_the_share_of_vivid_pixels(
    rgb: npt.NDArray[np.uint8], saturation: float
) -> None:
    assert measure_image(rgb).saturation == saturation


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    photo = np.asarray(_photo(3))
    luma = np.asarray(Image.fromarray(photo).convert("L"), dtype=float)
    rows, columns = np.pad(luma, ((1, 1), (0, 0)), "edge"), np.pad(luma, ((0, 0), (1, 1)), "edge")
    second = np.diff(rows, 2, axis=0) + np.diff(columns, 2, axis=1)
    assert measure_sharpness(photo) == pytest.approx(second.var())


def _photo(seed: int, side: int = 256) -> Image.Image:
    """An image with the falling spectrum of photographs."""
    rng = np.random.default_rng(seed)
    layers = [
        np.asarray(Image.fromarray(rng.random((cells, cells), np.float32)).resize((side, side), 3))
        / cells
        for cells in (4, 8, 16, 32)
    ]
    gray = sum(layers)
    return Image.fromarray(np.uint8(255 * (gray - np.min(gray)) / np.ptp(gray)))


def _distance(one: Image.Image, other: Image.Image) -> int:
    return ((perceptual_hash(one) ^ perceptual_hash(other)) & (2**64 - 1)).bit_count()


def _jpeg(image: Image.Image) -> Image.Image:
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=40)
    return Image.open(sink).convert("L")


@pytest.mark.parametrize(
    "change",
    [
        _jpeg,
        lambda image: image.resize((700, 700)),
        lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    ],
    ids=["JPEG", "larger", "darker"],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_image_stored_otherwise_differs_in_few_bits(seed: int, change: object) -> None:
    image = _photo(seed)
    assert _distance(image, change(image)) <= 6  # type: ignore[operator]  # one of the functions above


def test_the_hash_never_changes() -> None:
    pixels = np.add.outer(np.arange(64) ** 2 % 251, 3 * np.arange(64)) % 256
    assert perceptual_hash(Image.fromarray(pixels.astype(np.uint8))) == -7705877734170348754
