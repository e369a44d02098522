"""Counts of a run's images by status and mark, which add up in any order."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

T = TypeVar("T")
MAX_VALUES = 10_000  # counted; if there are more, only the most frequent so far stay
RETAINED_VALUES = 100
# Of a row, its settings or the model: a retry ends with the same error.
PERMANENT_PATTERN = (
    "^(?:Assertion|Attribute|Index|Key|NotImplemented|Overflow|Type|Value|ZeroDivision)Error: "
)


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """Images by status and by mark, and the bytes of those that have a file.

    A retry cannot fix `permanent_failures`.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    permanent_failures: int = 0

    def __add__(self, other: "ImageCounts") -> "ImageCounts":
        """The counts of both."""
        return ImageCounts(
            self.statuses + other.statuses,
            self.marks + other.marks,
            self.bytes + other.bytes,
            self.permanent_failures + other.permanent_failures,
        )


def count_images(manifest: pa.Table) -> ImageCounts:
    """Count the images of a manifest."""
    permanent = permanent_mask(manifest["status"], manifest["error"])
    return ImageCounts(
        count_values(manifest["status"]),
        count_values(pc.list_flatten(manifest["marks"])),
        pc.sum(manifest["byte_size"]).as_py() or 0,
        pc.sum(permanent).as_py() or 0,
    )


def count_values(column: pa.Array | pa.ChunkedArray) -> Counter[Any]:
    """Count each different value of a column."""
    entries = pc.value_counts(column).to_pylist()
    return Counter({entry["values"]: entry["counts"] for entry in entries})


def add_frequent(counts: Counter[T], more: Counter[T]) -> None:
    """Add counts to others, and forget rare values if there are too many."""
    counts.update(more)
    if len(counts) > MAX_VALUES:
        frequent = dict(counts.most_common(RETAINED_VALUES))
        counts.clear()
        counts.update(frequent)


def is_permanent(error: str) -> bool:
    """Whether a retry ends with the same error."""
    return re.match(PERMANENT_PATTERN, error) is not None


def permanent_mask(statuses: pa.Array, errors: pa.Array) -> pa.Array:
    """For each image of a manifest, whether it failed and a retry cannot fix it."""
    has_permanent_error = pc.match_substring_regex(errors, PERMANENT_PATTERN)
    is_failed = pc.equal(statuses, "failed")
    return pc.and_(is_failed, pc.fill_null(has_permanent_error, False))
