"""Batch sizes: powers of two."""

import pytest

from imagekiln.steps.models.performance import floor_power_of_two, limit_batch_pixels


@pytest.mark.parametrize(
    ("most", "power"), [(-3, 1), (0, 1), (0.7, 1), (1, 1), (3.9, 2), (4, 4), (1000, 512)]
)
def test_power_of_two_is_the_largest_up_to_a_number(most: float, power: int) -> None:
    assert floor_power_of_two(most) == power


@pytest.mark.parametrize(("most", "images"), [(None, 8), (800, 8), (799, 4), (100, 1), (99, 1)])
def test_a_batch_is_halved_until_it_has_no_more_pixels_than_fit(
    most: int | None, images: int
) -> None:
    assert limit_batch_pixels(8, 100, most) == images
