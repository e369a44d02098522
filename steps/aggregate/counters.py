"""Counters that stay small however much they count: histograms, frequent values, distributions."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import count_values

T = TypeVar("T")

MAX_BINS = 24
SIGNIFICANT_BITS = 10  # of a number in a histogram
MAX_VALUES = 10_000  # beyond which rare ones are forgotten: errors and shapes are arbitrary
RETAINED_VALUES = 100
MAX_TOP_VALUES = 12


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


class HistogramBuilder:
    """Counts finite numbers of any size and sign, rounded down to a few significant bits."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._counts: Counter[float] = Counter()
        self._least: int | float = np.inf
        self._most: int | float = -np.inf

    def add(self, values: pa.ChunkedArray) -> None:
        """Count these values. Ignores nulls, NaN and infinities."""
        is_finite = pc.is_finite(values)
        numbers = values.filter(is_finite)
        if not len(numbers):
            return
        extremes = pc.min_max(numbers).as_py()
        self._least = min(self._least, extremes["min"])
        self._most = max(self._most, extremes["max"])
        rounded = _round_down(numbers.to_numpy())
        self._counts += count_values(pa.array(rounded))

    def to_histogram(self) -> Histogram:
        """The histogram in at most 24 bins of about one width."""
        if not self._counts:
            return Histogram()
        is_whole = isinstance(self._most, int)
        end = self._most + 1 if is_whole else np.nextafter(self._most, np.inf)
        starts = np.linspace(
            self._least,
            end,
            MAX_BINS,
            endpoint=False,
        )
        if is_whole:
            starts = np.floor(starts)
        # Bounds are rounded as values are, so that each value is in its bin.
        distinct_starts = np.unique(_round_down(starts))
        bounds = np.append(distinct_starts, end)
        images, _ = np.histogram(
            list(self._counts),
            bounds,
            weights=list(self._counts.values()),
        )
        intervals = zip(
            bounds.tolist(),
            bounds[1:].tolist(),
            images.tolist(),
            strict=False,
        )
        bins = tuple(Bin(low, high, count) for low, high, count in intervals)
        return Histogram(self._least, self._most, bins)


def _round_down(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    mantissas, exponents = np.frexp(values)
    scaled = np.ldexp(mantissas, SIGNIFICANT_BITS)
    digits = np.floor(scaled)
    rounded: npt.NDArray[np.float64] = np.ldexp(digits, exponents - SIGNIFICANT_BITS)
    return rounded


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
    """Counts values. If too many are different, only the most frequent so far are retained."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._counts: Counter[T] = Counter()

    def __contains__(self, value: T) -> bool:
        """Whether the value is retained."""
        return value in self._counts

    def add(self, counts: Counter[T]) -> None:
        """Add counts of values."""
        self._counts.update(counts)
        if len(self._counts) > MAX_VALUES:
            retained = self._counts.most_common(RETAINED_VALUES)
            self._counts = Counter(dict(retained))

    def most_common(self, limit: int) -> list[tuple[T, int]]:
        """The most frequent values with their counts; among equal counts, the first value added."""
        return self._counts.most_common(limit)

    def top_values(self, total: int, format_value: Callable[[T], str] = str) -> TopValues:
        """The most frequent of `total` values as people read them."""
        common = self.most_common(MAX_TOP_VALUES)
        return TopValues(
            top=tuple(ValueCount(format_value(value), images) for value, images in common),
            others=len(self._counts) - len(common),
            other_images=total - sum(images for _, images in common),
        )


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions over planned images, but `bytes` over those that are ok.

    Prompts are measured in characters, shapes in pixels. `scores` are over the images that are
    stored and have one: those of candidates that were not kept hide the gain.
    """

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)
    scores: dict[str, Histogram] = field(default_factory=dict)


class DistributionBuilder:
    """Builds distributions shard by shard."""

    def __init__(self, scores: Iterable[str] = ()) -> None:
        """Begin with no image. `scores` are the columns of the job's scores."""
        self._scores = {name: HistogramBuilder() for name in scores}
        self._bytes = HistogramBuilder()
        self._prompt = HistogramBuilder()
        self._shapes = TopKCounter[str]()
        self._steps = TopKCounter[int]()
        self._guidance = TopKCounter[float]()
        self._images = 0
        self._guided_images = 0

    def add(self, manifest: pa.Table) -> None:
        """Count the images of one shard."""
        self._images += manifest.num_rows
        self._bytes.add(manifest["byte_size"])
        prompt_lengths = pc.utf8_length(manifest["prompt"])
        self._prompt.add(prompt_lengths)

        is_stored = pc.equal(manifest["status"], "ok")
        stored = manifest.filter(is_stored)
        for name, histogram in self._scores.items():
            histogram.add(stored[name])

        guidance = pc.drop_null(manifest["guidance"])
        self._guided_images += len(guidance)
        self._guidance.add(count_values(guidance))
        step_counts = count_values(manifest["steps"])
        self._steps.add(step_counts)

        shapes = pc.binary_join_element_wise(
            manifest["width"].cast(pa.string()),
            manifest["height"].cast(pa.string()),
            " \N{MULTIPLICATION SIGN} ",
        )
        self._shapes.add(count_values(shapes))

    def build(self) -> Distributions:
        """The distributions of all images added."""
        return Distributions(
            bytes=self._bytes.to_histogram(),
            prompt=self._prompt.to_histogram(),
            shapes=self._shapes.top_values(self._images),
            steps=self._steps.top_values(self._images),
            guidance=self._guidance.top_values(self._guided_images, "{:g}".format),
            scores={name: scores.to_histogram() for name, scores in self._scores.items()},
        )
