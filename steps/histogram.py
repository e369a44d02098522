"""Whole numbers of any size in bins that grow with them: a few kilobytes, however many are counted."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
        self._least, self._most = min(self._least, int(values.min())), max(self._most, int(values.max()))
        places = np.floor(np.log2(np.maximum(values, 1)) * BINS_PER_DOUBLING).astype(np.int64)
        self._counts += np.bincount(np.minimum(places, LOG_BINS - 1), minlength=LOG_BINS)

    def to_histogram(self) -> Histogram:
        """What was counted, from the first bin that holds something to the last."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return Histogram()
        first, last = int(filled[0]), int(filled[-1])
        wide = -(-(last - first + 1) // MAX_BINS)
        return Histogram(self._least, self._most, tuple(self._bin(at, wide) for at in range(first, last + 1, wide)))

    def _bin(self, first: int, wide: int) -> Bin:
        return Bin(
            2 ** (first / BINS_PER_DOUBLING),
            2 ** ((first + wide) / BINS_PER_DOUBLING),
            int(self._counts[first : first + wide].sum()),
        )
