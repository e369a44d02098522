"""How often each value came up, in memory that does not grow with what is counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

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
        top = tuple(ValueCount(said(value), images) for value, images in self.most_common(MAX_TOP_VALUES))
        return TopValues(top, len(self._counts) - len(top), self._total - sum(each.images for each in top))
