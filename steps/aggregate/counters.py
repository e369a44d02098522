"""Counters that stay small however much they count: histograms, frequent values, distributions."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

T = TypeVar("T")

BINS_PER_DOUBLING = 16  # from a value to its double
LOG_BINS = 48 * BINS_PER_DOUBLING
MAX_BINS = 24
MAX_VALUES = 10_000  # beyond which rare ones are forgotten: errors and shapes are arbitrary
RETAINED_VALUES = 100
MAX_TOP_VALUES = 12
FINEST_WIDTH = 2.0**-20  # of a bin
MAX_LINEAR_BINS = 4096
MAX_PLACE = 2**52  # up to which bins are numbered exactly
SIDE_BITS = 17  # a side has at most 65,536 pixels


@dataclass(frozen=True, slots=True)
class Bin:
    """How many values are at least `low` and under `high`."""

    low: float
    high: float
    images: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in at most 24 bins. `least` and `most` are exact."""

    least: int | float = 0
    most: int | float = 0
    bins: tuple[Bin, ...] = ()

    @property
    def images(self) -> int:
        """How many values were counted."""
        return sum(interval.images for interval in self.bins)

    def interquartile_range(self) -> tuple[float, float]:
        """Bounds between which the middle half of the values lies, as exact as the bins are."""
        low = self._quantile_bin(0.25).low
        high = self._quantile_bin(0.75).high
        return max(low, self.least), min(high, self.most)

    def _quantile_bin(self, share: float) -> Bin:
        quantile_rank = share * self.images
        rank = 0
        for interval in self.bins:
            rank += interval.images
            if rank >= quantile_rank:
                return interval
        return self.bins[-1]


class LinearHistogram:
    """Counts numbers of any size and sign in bins of one width, which doubles as their range grows.

    Bins begin at multiples of the width, so that the order in which numbers come changes nothing.
    """

    def __init__(self) -> None:
        """Begin with no value."""
        self._width = FINEST_WIDTH
        self._counts: Counter[int] = Counter()
        self._least = np.inf
        self._most = -np.inf

    def add(self, values: npt.NDArray[np.floating]) -> None:
        """Count these values. What is no finite number is left out."""
        is_finite = np.isfinite(values)
        numbers = values[is_finite].astype(np.float64)
        if not len(numbers):
            return
        least = float(numbers.min())
        most = float(numbers.max())
        self._least = min(self._least, least)
        self._most = max(self._most, most)
        self._widen(MAX_LINEAR_BINS)

        places = np.floor(numbers / self._width)
        bins, counts = np.unique(
            places.astype(np.int64),
            return_counts=True,
        )
        pairs = zip(
            bins.tolist(),
            counts.tolist(),
            strict=True,
        )
        self._counts.update(dict(pairs))

    def to_histogram(self) -> Histogram:
        """The histogram in at most 24 bins."""
        if not self._counts:
            return Histogram()
        self._widen(MAX_BINS)
        first = min(self._counts)
        last = max(self._counts)
        return Histogram(
            least=self._least,
            most=self._most,
            bins=tuple(self._bin(place) for place in range(first, last + 1)),
        )

    def _bin(self, place: int) -> Bin:
        return Bin(
            low=place * self._width,
            high=(place + 1) * self._width,
            images=self._counts[place],
        )

    def _widen(self, most_bins: int) -> None:
        """Double the width until the range has at most so many bins."""
        while not self._fits(most_bins):
            self._width *= 2
            merged: Counter[int] = Counter()
            for place, count in self._counts.items():
                merged[place // 2] += count
            self._counts = merged

    def _fits(self, most_bins: int) -> bool:
        first = np.floor(self._least / self._width)
        last = np.floor(self._most / self._width)
        is_exact = max(-first, last) < MAX_PLACE
        return bool(is_exact and last - first < most_bins)


class LogHistogram:
    """Counts whole numbers of 1 and more, of any size, in bins that grow with the numbers."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._counts = np.zeros(LOG_BINS, dtype=np.int64)
        self._least = 2**63 - 1
        self._most = 0

    def add(self, values: npt.NDArray[np.integer]) -> None:
        """Count these values."""
        if not len(values):
            return
        least = int(values.min())
        most = int(values.max())
        self._least = min(self._least, least)
        self._most = max(self._most, most)

        doublings = np.log2(np.maximum(values, 1))
        bins = np.floor(doublings * BINS_PER_DOUBLING).astype(np.int64)
        last_bin = LOG_BINS - 1
        self._counts += np.bincount(
            np.minimum(bins, last_bin),
            minlength=LOG_BINS,
        )

    def to_histogram(self) -> Histogram:
        """The histogram from the first bin that is not empty to the last, neighbors merged."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return Histogram()
        first = int(filled[0])
        last = int(filled[-1])
        width = ceil((last - first + 1) / MAX_BINS)
        starts = range(first, last + 1, width)
        return Histogram(
            least=self._least,
            most=self._most,
            bins=tuple(self._merged_bin(start, width) for start in starts),
        )

    def _merged_bin(self, start: int, width: int) -> Bin:
        stop = start + width
        counts = self._counts[start:stop]
        return Bin(
            low=2 ** (start / BINS_PER_DOUBLING),
            high=2 ** (stop / BINS_PER_DOUBLING),
            images=int(counts.sum()),
        )


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A setting's value, and how many images have it."""

    value: str
    images: int


@dataclass(frozen=True, slots=True)
class TopValues:
    """A setting's most frequent values; `others` counts the rarer ones, and their images."""

    top: tuple[ValueCount, ...] = ()
    others: int = 0
    other_images: int = 0


class TopKCounter(Generic[T]):
    """Counts values. Where too many are different, only the most frequent so far are retained."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._counts: Counter[T] = Counter()
        self._total = 0

    def __contains__(self, value: T) -> bool:
        """Whether the value is retained."""
        return value in self._counts

    def add(self, values: Iterable[T] | Mapping[T, int]) -> None:
        """Count values, or add counts of values."""
        added = Counter(values)
        self._total += added.total()
        self._counts.update(added)
        if len(self._counts) > MAX_VALUES:
            retained = self._counts.most_common(RETAINED_VALUES)
            self._counts = Counter(dict(retained))

    def add_column(self, values: npt.NDArray[Any]) -> None:
        """Count the values of a column of numbers."""
        distinct, counts = np.unique(values, return_counts=True)
        pairs = zip(
            distinct.tolist(),
            counts.tolist(),
            strict=True,
        )
        self.add(dict(pairs))

    def most_common(self, limit: int) -> list[tuple[T, int]]:
        """The most frequent values with their counts; among equal counts, the first value added."""
        return self._counts.most_common(limit)

    def top_values(self, format_value: Callable[[T], str]) -> TopValues:
        """The most frequent values as people read them."""
        common = self.most_common(MAX_TOP_VALUES)
        top_images = sum(images for _, images in common)
        return TopValues(
            top=tuple(ValueCount(format_value(value), images) for value, images in common),
            others=len(self._counts) - len(common),
            other_images=self._total - top_images,
        )


def _is_empty(scores: dict[str, Histogram]) -> bool:
    # Summaries without scores have the bytes that they had before there were any.
    return not scores


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions over planned images, but `bytes` over those that are ok.

    Prompts are measured in characters, shapes in pixels. `scores` are over the images that are
    stored and have one: those of losers hide what choosing has gained.
    """

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)
    scores: Annotated[dict[str, Histogram], Field(exclude_if=_is_empty)] = field(
        default_factory=dict
    )


class DistributionBuilder:
    """Builds distributions shard by shard."""

    def __init__(self, scores: Iterable[str] = ()) -> None:
        """Begin with no image. `scores` are the columns of the job's scores."""
        self._scores = {name: LinearHistogram() for name in scores}
        self._bytes = LogHistogram()
        self._prompt = LogHistogram()
        self._shapes = TopKCounter[int]()
        self._steps = TopKCounter[int]()
        self._guidance = TopKCounter[float]()

    def add(self, manifest: pa.Table) -> None:
        """Count the images of one shard."""
        sizes = pc.drop_null(manifest["byte_size"])
        prompt_lengths = pc.utf8_length(manifest["prompt"])
        self._bytes.add(sizes.to_numpy())
        self._prompt.add(prompt_lengths.to_numpy())

        steps = manifest["steps"].to_numpy()
        guidance = pc.drop_null(manifest["guidance"]).to_numpy()
        self._steps.add_column(steps)
        self._guidance.add_column(guidance)

        is_stored = pc.equal(manifest["status"], "ok")
        stored = manifest.filter(is_stored)
        for name, histogram in self._scores.items():
            histogram.add(pc.drop_null(stored[name]).to_numpy())

        widths = manifest["width"].to_numpy()
        heights = manifest["height"].to_numpy()
        shapes = (widths << SIDE_BITS) | heights
        self._shapes.add_column(shapes)

    def build(self) -> Distributions:
        """The distributions of all images added."""
        return Distributions(
            bytes=self._bytes.to_histogram(),
            prompt=self._prompt.to_histogram(),
            shapes=self._shapes.top_values(_format_shape),
            steps=self._steps.top_values(str),
            guidance=self._guidance.top_values("{:g}".format),
            scores={name: scores.to_histogram() for name, scores in self._scores.items()},
        )


def _format_shape(packed: int) -> str:
    width = packed >> SIDE_BITS
    height = packed & (1 << SIDE_BITS) - 1
    return f"{width} \N{MULTIPLICATION SIGN} {height}"
