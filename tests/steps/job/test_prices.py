"""What a GPU costs by the table of the user."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.prices import GpuPrice, Prices, read_price_file

TABLE = Prices(
    table=(
        GpuPrice(gpu="NVIDIA-H100-80GB-HBM3", per_hour=2.49),
        GpuPrice(gpu="NVIDIA-H100-80GB-HBM3", spot=True, per_hour=1.19),
        GpuPrice(gpu="NVIDIA L4", per_hour=0.71),
    )
)


@pytest.mark.parametrize(
    ("gpu", "spot", "per_hour"),
    [
        ("NVIDIA H100 80GB HBM3", False, 2.49),  # as nvidia-smi names it
        ("NVIDIA-H100-80GB-HBM3", True, 1.19),  # as the label of a node does
        ("NVIDIA-L4-SHARED", False, 0.71),
        ("nvidia l4", True, 0.71),  # no more than on other nodes
        ("NVIDIA A10G", False, None),
        (None, False, None),  # it may be either
    ],
)
def test_a_price_is_found_by_either_name_of_a_gpu(
    gpu: str | None, spot: bool, per_hour: float | None
) -> None:
    price = TABLE.find(gpu, spot=spot)
    assert (None if price is None else price.per_hour) == per_hour


def test_a_gpu_that_the_table_lacks_has_the_highest_price_at_most() -> None:
    for gpu in ("NVIDIA A10G", None):
        price = TABLE.find_or_highest(gpu, spot=True)
        assert price is not None
        assert (price.per_hour, price.is_highest) == (2.49, True)
    price = TABLE.find_or_highest("NVIDIA L4")
    assert price is not None
    assert (price.per_hour, price.is_highest) == (0.71, False)
    assert Prices().find_or_highest(None) is None


def test_one_price_for_all_goes_before_the_table() -> None:
    price = Prices(3.0, TABLE.table).find("NVIDIA L4")
    assert price is not None
    assert price.per_hour == 3.0


def test_a_number_in_place_of_a_table_is_refused_with_the_option_for_it() -> None:
    with pytest.raises(BadInput, match=r"not a price table.* --price 2\.5, or price_per_hour"):
        read_price_file("2.5")


def test_a_table_of_one_gpu_has_the_price_of_an_unknown_one() -> None:
    price = Prices(table=TABLE.table[:2]).find(None)
    assert price is not None
    assert (price.per_hour, price.source) == (2.49, "NVIDIA-H100-80GB-HBM3")


def test_a_mistake_in_a_table_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("prices:\n  - {gpu: NVIDIA L4, per_hour: 0.71}\n  - {gpu: T4, per_hour: -1}\n")
    with pytest.raises(BadInput) as error:
        read_price_file(str(path))
    assert f"{path}:3: prices[1].per_hour is -1" in str(error.value)
