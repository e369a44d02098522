"""What is measured of an image."""

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.imaging.measures import measure_image


def _of(*columns: tuple[int, int, int], side: int = 64) -> npt.NDArray[np.uint8]:
    """An image of upright stripes."""
    return np.repeat(np.array([columns], np.uint8), side // len(columns), axis=1).repeat(
        side, axis=0
    )


@pytest.mark.parametrize(
    ("rgb", "contrast"),
    [
        (_of((9, 9, 9), (9, 9, 9)), 0.0),
        (_of((0, 0, 0), (255, 255, 255)), 0.5),
        (_of((100, 100, 100), (151, 151, 151)), 0.1),
        (_of((0, 255, 0), (255, 255, 255)), (1 - 0.587) / 2),
    ],
)
def test_contrast_is_the_standard_deviation_of_luma(
    rgb: npt.NDArray[np.uint8], contrast: float
) -> None:
    assert measure_image(rgb).contrast == pytest.approx(contrast, abs=1 / 255)


@pytest.mark.parametrize(
    ("rgb", "saturation"),
    [
        (_of((255, 0, 0), (0, 0, 255)), 1.0),
        (_of((255, 23, 23), (230, 0, 0)), 1.0),
        (_of((255, 26, 26), (229, 0, 0)), 0.0),
        (_of((255, 255, 255), (0, 0, 0)), 0.0),
        (_of((255, 0, 255), (128, 128, 128)), 0.5),
    ],
)
def test_saturation_is_the_share_of_vivid_pixels(
    rgb: npt.NDArray[np.uint8], saturation: float
) -> None:
    assert measure_image(rgb).saturation == saturation


@pytest.mark.parametrize("size", [(1, 2), (2, 1), (3, 1000), (1025, 7), (300, 257)])
def test_images_of_any_size_are_measured(size: tuple[int, int]) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    found = measure_image(noise)
    assert 0 < found.contrast < 0.5
    assert -(2**63) <= found.phash < 2**63


def test_a_large_image_measures_as_its_own_small_copy() -> None:
    small = np.random.default_rng(1).integers(0, 256, (256, 128, 3), dtype=np.uint8)
    assert measure_image(small.repeat(3, axis=0).repeat(3, axis=1)) == measure_image(small)


def test_the_same_pixels_give_the_same_figures_however_they_lie_in_memory() -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    assert measure_image(np.asfortranarray(rgb)) == measure_image(rgb)
