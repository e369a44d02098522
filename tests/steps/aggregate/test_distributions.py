"""How a run's images spread, counted shard by shard in little memory."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.distributions import (
    MAX_BINS,
    MAX_TOP_VALUES,
    DistributionBuilder,
    Histogram,
    HistogramBuilder,
)
from imagekiln.steps.aggregate.image_counts import MAX_VALUES


def _manifest(
    sizes: list[int | None], shape: tuple[int, int] = (64, 96), guidance: float = 3.0
) -> pa.Table:
    count = len(sizes)
    return pa.table(
        {
            "status": pa.array(["failed" if size is None else "ok" for size in sizes], pa.string()),
            "byte_size": pa.array(sizes, pa.int64()),
            "prompt": pa.array(["ż" * (place + 1) for place in range(count)], pa.string()),
            "width": pa.array([shape[0]] * count, pa.int64()),
            "height": pa.array([shape[1]] * count, pa.int64()),
            "steps": pa.array([30] * count, pa.int64()),
            "guidance": pa.array([guidance] * count, pa.float64()),
        }
    )


def _count(histogram: Histogram) -> int:
    return sum(each.images for each in histogram.bins)


def test_every_image_is_counted_by_its_settings_and_every_good_one_by_its_size() -> None:
    spread = DistributionBuilder()
    spread.add(_manifest([1000, None, 2000]))
    spread.add(_manifest([500], shape=(1024, 512), guidance=7.5))
    result = spread.build()
    assert (result.bytes.least, result.bytes.most, _count(result.bytes)) == (500, 2000, 3)
    assert (result.prompt.least, result.prompt.most, _count(result.prompt)) == (1, 3, 4)
    assert [(each.value, each.images) for each in result.shapes.top] == [
        ("64 \N{MULTIPLICATION SIGN} 96", 3),
        ("1024 \N{MULTIPLICATION SIGN} 512", 1),
    ]
    assert [(each.value, each.images) for each in result.guidance.top] == [("3", 3), ("7.5", 1)]
    assert [(each.value, each.images) for each in result.steps.top] == [("30", 4)]


def test_frequent_values_stay_however_many_rare_ones_there_are() -> None:
    spread = DistributionBuilder()
    rounds = 3 * MAX_VALUES // 1000
    frequent = [1.0] * 50
    for start in range(rounds):
        rare = [10 + start + place / 1000 for place in range(1000)]
        table = _manifest([1] * 1050)
        index = table.column_names.index("guidance")
        spread.add(table.set_column(index, "guidance", pa.array([*rare, *frequent])))
    result = spread.build().guidance
    assert (result.top[0].value, result.top[0].images) == ("1", 50 * rounds)
    assert len(result.top) == MAX_TOP_VALUES
    assert sum(each.images for each in result.top) + result.other_images == 1050 * rounds


def _histogram(values: npt.NDArray[Any]) -> Histogram:
    builder = HistogramBuilder()
    for some in np.array_split(values, 7):
        builder.add(pa.chunked_array([some]))
    return builder.build()


@pytest.mark.parametrize(
    "values",
    [
        np.array([7] * 5),
        np.array([1, 2**46]),
        np.random.default_rng(1).integers(100, 100_000, 10_000),
        np.random.default_rng(5).normal(23, 4, 1000).astype(np.float32).astype(np.float64),
    ],
)
def test_bins_hold_the_values_within_their_bounds_in_whatever_order_they_come(
    values: npt.NDArray[Any],
) -> None:
    histogram = _histogram(values)
    assert histogram == _histogram(values[::-1])
    assert (histogram.least, histogram.most) == (values.min(), values.max())
    assert _count(histogram) == len(values)
    assert 0 < len(histogram.bins) <= MAX_BINS
    for each in histogram.bins:
        assert each.images == ((values >= each.low) & (values < each.high)).sum()


def test_a_histogram_takes_any_numbers() -> None:
    counter = HistogramBuilder()
    counter.add(pa.chunked_array([[np.nan, np.inf, -np.inf]], pa.float32()))
    assert counter.build() == Histogram()
    counter.add(pa.chunked_array([[0.0, -3e38, 3e38, 1e-40]], pa.float32()))
    assert _count(counter.build()) == 4
