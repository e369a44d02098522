"""Whole numbers of any size in bins that grow with them: a few kilobytes, however many are counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BINS_PER_DOUBLING = 16  # bins from a value to its double
LOG_BINS = 48 * BINS_PER_DOUBLING
MAX_BINS = 24


@dataclass(frozen=True, slots=True)
class Bin:
    """How many values are at least `low` and under `high`."""

    low: float
    high: float
    images: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bin, neighbours joined so that there are at most 24. `least` and `most` are exact."""

    least: int = 0
    most: int = 0
    bins: tuple[Bin, ...] = ()

    @property
    def images(self) -> int:
        """How many values were counted."""
        return sum(each.images for each in self.bins)

    def interquartile_range(self) -> tuple[float, float]:
        """Between which bins' bounds the middle half of the values lies, at least."""
        totals = np.cumsum([each.images for each in self.bins])
        low, high = (int(np.searchsorted(totals, share * totals[-1])) for share in (0.25, 0.75))
        return max(self.bins[low].low, self.least), min(self.bins[high].high, self.most)


class LogHistogram:
    """Counts values of 1 and more."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._counts = np.zeros(LOG_BINS, dtype=np.int64)
        self._least, self._most = 2**63 - 1, 0

    def add(self, values: npt.NDArray[np.integer]) -> None:
        """Count so many more values."""
        if not len(values):
            return
        self._least, self._most = (
            min(self._least, int(values.min())),
            max(self._most, int(values.max())),
        )
        places = np.floor(np.log2(np.maximum(values, 1)) * BINS_PER_DOUBLING).astype(np.int64)
        self._counts += np.bincount(np.minimum(places, LOG_BINS - 1), minlength=LOG_BINS)

    def to_histogram(self) -> Histogram:
        """What was counted, from the first bin that holds something to the last."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return Histogram()
        first, last = int(filled[0]), int(filled[-1])
        wide = -(-(last - first + 1) // MAX_BINS)
        return Histogram(
            self._least,
            self._most,
            tuple(self._bin(at, wide) for at in range(first, last + 1, wide)),
        )

    def _bin(self, first: int, wide: int) -> Bin:
        return Bin(
            2 ** (first / BINS_PER_DOUBLING),
            2 ** ((first + wide) / BINS_PER_DOUBLING),
            int(self._counts[first : first + wide].sum()),
        )


T = TypeVar("T")
MAX_VALUES = 10_000  # values; beyond it, rare ones are forgotten: errors and shapes may be anything
RETAINED_VALUES = 100
MAX_TOP_VALUES = 12


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A setting's value, and how many images have it."""

    value: str
    images: int


@dataclass(frozen=True, slots=True)
class TopValues:
    """A setting's most frequent values, how many images have a rarer one, and how many of these there are."""

    top: tuple[ValueCount, ...] = ()
    others: int = 0
    other_images: int = 0


class TopKCounter(Generic[T]):
    """Counts values. Where there are too many different ones, only the most frequent so far stay."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._counts: Counter[T] = Counter()
        self._total = 0

    def add(self, values: Iterable[T] | Mapping[T, int]) -> None:
        """Count values, or add counts."""
        added = Counter(values)
        self._total += added.total()
        self._counts.update(added)
        if len(self._counts) > MAX_VALUES:
            self._counts = Counter(dict(self._counts.most_common(RETAINED_VALUES)))

    def add_column(self, values: npt.NDArray[Any]) -> None:
        """Count the values of a column of numbers."""
        different, counts = np.unique(values, return_counts=True)
        self.add(dict(zip(different.tolist(), counts.tolist(), strict=True)))

    def __contains__(self, value: T) -> bool:
        """Whether the value is counted."""
        return value in self._counts

    def most_common(self, most: int) -> list[tuple[T, int]]:
        """The most frequent values, and how often each came up; of equal ones the first that came."""
        return self._counts.most_common(most)

    def top_values(self, said: Callable[[T], str]) -> TopValues:
        """The most frequent values as people read them."""
        top = tuple(
            ValueCount(said(value), images) for value, images in self.most_common(MAX_TOP_VALUES)
        )
        return TopValues(
            top, len(self._counts) - len(top), self._total - sum(each.images for each in top)
        )


SIDE_BITS = 17  # a side is at most 65,536


@dataclass(frozen=True, slots=True)
class Distributions:
    """Bytes are of images that are ok; all else is of planned images. Prompts are in characters."""

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)


class DistributionBuilder:
    """Counts shard after shard."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._bytes, self._prompt = LogHistogram(), LogHistogram()
        self._shapes, self._steps, self._guidance = (
            TopKCounter[int](),
            TopKCounter[int](),
            TopKCounter[float](),
        )

    def add(self, manifest: pa.Table) -> None:
        """Count one shard's images."""
        self._bytes.add(pc.drop_null(manifest["size"]).to_numpy())
        self._prompt.add(pc.utf8_length(manifest["prompt"]).to_numpy())
        self._shapes.add_column(
            (manifest["width"].to_numpy() << SIDE_BITS) | manifest["height"].to_numpy()
        )
        self._steps.add_column(manifest["steps"].to_numpy())
        self._guidance.add_column(manifest["guidance"].to_numpy())

    def build(self) -> Distributions:
        """What was counted."""
        return Distributions(
            bytes=self._bytes.to_histogram(),
            prompt=self._prompt.to_histogram(),
            shapes=self._shapes.top_values(_format_shape),
            steps=self._steps.top_values(str),
            guidance=self._guidance.top_values("{:g}".format),
        )


def _format_shape(key: int) -> str:
    return f"{key >> SIDE_BITS} \N{MULTIPLICATION SIGN} {key & (1 << SIDE_BITS) - 1}"
