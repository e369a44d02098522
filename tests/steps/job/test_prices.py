"""What a GPU costs by the table of the user."""

import pytest

from imagekiln.steps.job.execution import find_price, find_price_or_highest

TABLE = {"NVIDIA-H100-80GB-HBM3": 2.49, "NVIDIA L4": 0.71}


@pytest.mark.parametrize(
    ("gpu", "per_hour"),
    [
        ("NVIDIA H100 80GB HBM3", 2.49),  # as nvidia-smi names it
        ("NVIDIA-H100-80GB-HBM3", 2.49),  # as the label of a node does
        ("nvidia l4", 0.71),
        ("NVIDIA A10G", None),
        (None, None),  # it may be either
    ],
)
def test_a_price_is_found_by_either_name_of_a_gpu(gpu: str | None, per_hour: float | None) -> None:
    price = find_price(TABLE, gpu)
    assert (None if price is None else price.per_hour) == per_hour


def test_a_gpu_that_the_table_lacks_has_the_highest_price_at_most() -> None:
    for gpu in ("NVIDIA A10G", None):
        price = find_price_or_highest(TABLE, gpu)
        assert price is not None
        assert (price.per_hour, price.is_highest) == (2.49, True)
    price = find_price_or_highest(TABLE, "NVIDIA L4")
    assert price is not None
    assert (price.per_hour, price.is_highest) == (0.71, False)
    assert find_price_or_highest(None, None) is None


def test_a_number_is_the_price_of_every_gpu() -> None:
    for gpu in ("NVIDIA L4", None):
        price = find_price(3.0, gpu)
        assert price is not None
        assert price.per_hour == 3.0


def test_a_table_of_one_gpu_has_the_price_of_an_unknown_one() -> None:
    price = find_price({"NVIDIA L4": 0.71}, None)
    assert price is not None
    assert (price.per_hour, price.source) == (0.71, "NVIDIA L4")
