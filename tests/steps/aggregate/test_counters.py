"""How a run's images spread, counted shard by shard in little memory."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.counters import (
    MAX_BINS,
    MAX_TOP_VALUES,
    MAX_VALUES,
    DistributionBuilder,
    Distributions,
    Histogram,
    HistogramBuilder,
    TopKCounter,
)


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


def test_every_image_is_counted_by_its_settings_and_every_good_one_by_its_size() -> None:
    spread = DistributionBuilder()
    spread.add(_manifest([1000, None, 2000]))
    spread.add(_manifest([500], shape=(1024, 512), guidance=7.5))
    result = spread.build()
    assert (result.bytes.least, result.bytes.most, result.bytes.images) == (500, 2000, 3)
    assert (result.prompt.least, result.prompt.most, result.prompt.images) == (1, 3, 4)
    assert [(each.value, each.images) for each in result.shapes.top] == [
        ("64 \N{MULTIPLICATION SIGN} 96", 3),
        ("1024 \N{MULTIPLICATION SIGN} 512", 1),
    ]
    assert [(each.value, each.images) for each in result.guidance.top] == [("3", 3), ("7.5", 1)]
    assert [(each.value, each.images) for each in result.steps.top] == [("30", 4)]


def test_nothing_counted_is_an_empty_distribution() -> None:
    spread = DistributionBuilder()
    spread.add(_manifest([]))
    assert spread.build() == Distributions()
    spread.add(_manifest([None]))
    assert spread.build().bytes == Histogram()


@pytest.mark.parametrize("values", [[7] * 5, [1, 2**46]])
def test_a_histogram_holds_every_value_between_its_bounds(values: list[int]) -> None:
    growing = HistogramBuilder()
    growing.add(pa.chunked_array([values]))
    result = growing.to_histogram()
    assert result.images == len(values)
    assert len(result.bins) <= MAX_BINS
    assert all(one.high == two.low for one, two in zip(result.bins, result.bins[1:], strict=False))
    assert result.bins[0].low <= min(values) + 1e-9


def test_a_bin_holds_what_is_counted_within_its_bounds() -> None:
    values = np.random.default_rng(1).integers(100, 100_000, 10_000)
    growing = HistogramBuilder()
    for some in np.array_split(values, 7):
        growing.add(pa.chunked_array([some]))
    for each in growing.to_histogram().bins:
        assert each.images == ((values >= each.low) & (values < each.high)).sum()


def test_frequent_values_stay_however_many_rare_ones_there_are() -> None:
    tally = TopKCounter[int]()
    for start in range(0, 3 * MAX_VALUES, 1000):
        tally.add(Counter([*range(start + 10, start + 1010), *[1] * 50]))
    total = 1050 * 3 * MAX_VALUES // 1000
    result = tally.top_values(total)
    assert (result.top[0].value, result.top[0].images) == ("1", 50 * 3 * MAX_VALUES // 1000)
    assert len(result.top) == MAX_TOP_VALUES
    assert sum(each.images for each in result.top) + result.other_images == total


def test_a_histogram_of_scores_is_the_same_in_whatever_order_they_come() -> None:
    dice = np.random.default_rng(5)
    scores = dice.normal(23, 4, 1000).astype(np.float32).astype(np.float64)
    histograms = []
    for order in (scores, scores[::-1]):
        counter = HistogramBuilder()
        for start in range(0, len(order), 70):
            counter.add(pa.chunked_array([order[start : start + 70]]))
        histograms.append(counter.to_histogram())
    assert histograms[0] == histograms[1]
    found = histograms[0]
    assert (found.least, found.most) == (float(scores.min()), float(scores.max()))
    assert found.images == len(scores)
    assert 12 <= len(found.bins) <= 24
    for interval in found.bins:
        inside = (scores >= interval.low) & (scores < interval.high)
        assert inside.sum() == interval.images


def test_a_histogram_of_scores_takes_any_numbers() -> None:
    counter = HistogramBuilder()
    assert counter.to_histogram() == Histogram()
    counter.add(pa.chunked_array([[np.nan, np.inf, -np.inf]], pa.float32()))
    assert counter.to_histogram() == Histogram()
    counter.add(pa.chunked_array([[0.0, -3e38, 3e38, 1e-40]], pa.float32()))
    assert counter.to_histogram().images == 4
