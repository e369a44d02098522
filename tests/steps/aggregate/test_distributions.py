"""How a run's images spread."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.aggregate.image_counts import (
    MAX_BINS,
    MAX_TOP_VALUES,
    Distributions,
    Histogram,
    find_distributions,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from tests.runs import settings
from tests.steps.aggregate.tables import image_table, manifest


@pytest.fixture
def job(tmp_path: Path) -> Job:
    score = {"kind": "own", "entry": "tests.own_checks:score"}
    return validate_job(settings(tmp_path, str(tmp_path / "out"), scores={"mine": score}))


def _distributions(job: Job, *shards: dict[str, Any]) -> Distributions:
    tables = [manifest(len(shard["mine"]), **shard) for shard in shards]
    with image_table(job, *tables) as table:
        return find_distributions(table, job.scores)


def _count(histogram: Histogram) -> int:
    return sum(each.images for each in histogram.bins)


def test_every_image_is_counted_by_its_settings_and_every_good_one_by_its_size(job: Job) -> None:
    small = {"width": [64] * 3, "height": [96] * 3, "guidance": [3.0] * 3, "steps": [30] * 3}
    large = {"width": [1024], "height": [512], "guidance": [7.5], "steps": [30]}
    result = _distributions(
        job,
        {"mine": [1] * 3, "byte_size": [1000, None, 2000], "prompt": ["ż", "żż", "żżż"], **small},
        {"mine": [1], "byte_size": [500], "prompt": ["a"], **large},
    )
    assert (result.bytes.least, result.bytes.most, _count(result.bytes)) == (500, 2000, 3)
    assert (result.prompt.least, result.prompt.most, _count(result.prompt)) == (1, 3, 4)
    assert [(each.value, each.images) for each in result.shapes.top] == [
        ("64 \N{MULTIPLICATION SIGN} 96", 3),
        ("1024 \N{MULTIPLICATION SIGN} 512", 1),
    ]
    assert [(each.value, each.images) for each in result.guidance.top] == [("3", 3), ("7.5", 1)]
    assert [(each.value, each.images) for each in result.steps.top] == [("30", 4)]


def test_frequent_values_are_named_and_rare_ones_counted(job: Job) -> None:
    guidance = [1.0] * 50 + [10 + place / 1000 for place in range(1000)]
    result = _distributions(job, {"mine": [None] * 1050, "guidance": guidance}).guidance
    assert (result.top[0].value, result.top[0].images) == ("1", 50)
    assert len(result.top) == MAX_TOP_VALUES
    assert (result.others, result.other_images) == (1001 - MAX_TOP_VALUES, 1001 - MAX_TOP_VALUES)


@pytest.mark.parametrize(
    "values",
    [
        np.array([7.0] * 5),
        np.array([1.0, 2**46]),
        np.random.default_rng(5).normal(23, 4, 1000),
        np.array([0.0, -3e38, 3e38, 1e-40]),
    ],
)
def test_bins_hold_the_values_within_their_bounds(job: Job, values: npt.NDArray[Any]) -> None:
    singles = values.astype(np.float32)
    mixed = [*singles.tolist(), np.nan, np.inf, -np.inf, None]
    histogram = _distributions(job, {"mine": mixed}).scores["mine"]
    assert (histogram.least, histogram.most) == (singles.min(), singles.max())
    assert _count(histogram) == len(values)
    assert 0 < len(histogram.bins) <= 2 * MAX_BINS
    for each in histogram.bins[1:]:
        assert each.images == ((singles > each.low) & (singles <= each.high)).sum()


def test_a_histogram_without_numbers_is_empty(job: Job) -> None:
    assert _distributions(job, {"mine": [np.nan, None]}).scores["mine"] == Histogram()
