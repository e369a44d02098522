"""Counts of a run's images by status, mark, and cause of failure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import first_line
from imagekiln.steps.job.columns import dataset_name
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runtime.sanitize import truncate_text

T = TypeVar("T")
MAX_VALUES = 10_000  # counted; if there are more, only the most frequent so far stay
RETAINED_VALUES = 100
MAX_EXAMPLES = 3
MAX_PROMPT_CHARS = 300
MAX_CARRIED_COLUMNS = 8  # of the input, in an example
MAX_CARRIED_CHARS = 100
# Of a row, its settings or the model: a retry ends with the same error.
PERMANENT_PATTERN = (
    "^(?:Assertion|Attribute|Index|Key|NotImplemented|Overflow|Type|Value|ZeroDivision)Error: "
)
StatusAndError = tuple[str, str]


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
    """True if a retry ends with the same error."""
    return re.match(PERMANENT_PATTERN, error) is not None


def permanent_mask(statuses: pa.Array, errors: pa.Array) -> pa.Array:
    """For each image of a manifest, whether it failed and a retry cannot fix it."""
    has_permanent_error = pc.match_substring_regex(errors, PERMANENT_PATTERN)
    is_failed = pc.equal(statuses, "failed")
    return pc.and_(is_failed, pc.fill_null(has_permanent_error, False))


@dataclass(frozen=True, slots=True)
class FailureExample:
    """One image that is not ok, and the part with its row. Long texts are truncated.

    `id` is that of the prompt row, `carried` has the first columns copied from the input.
    """

    image_id: str
    row: int
    part: str
    prompt: str
    id: str | None = None
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A reason why images are not ok, with the number of images and the first few of them."""

    status: str
    error: str
    images: int
    examples: tuple[FailureExample, ...] = ()

    @property
    def is_permanent(self) -> bool:
        """True if a retry ends with the same error."""
        return self.status == "failed" and is_permanent(self.error)


class FailureCounter:
    """Counts causes shard by shard. If there are very many, only the frequent ones stay."""

    def __init__(self, carry: Sequence[str] = ()) -> None:
        """Begin without failures. `carry` names the columns that the job copies from its input."""
        self._carry = [dataset_name(column) for column in carry[:MAX_CARRIED_COLUMNS]]
        self._images: Counter[StatusAndError] = Counter()
        self._examples: dict[StatusAndError, list[FailureExample]] = {}

    def add(self, manifest: pa.Table) -> None:
        """Add the failures of one shard."""
        has_error = pc.is_valid(manifest["error"])
        failures = manifest.filter(has_error)
        errors = map(first_line, failures["error"].to_pylist())
        causes = list(zip(failures["status"].to_pylist(), errors, strict=True))
        add_frequent(self._images, Counter(causes))
        for index, cause in enumerate(causes):
            examples = self._examples.setdefault(cause, [])
            if len(examples) < MAX_EXAMPLES and cause in self._images:
                examples.append(_failure_example(failures, index, self._carry))
        self._examples = {cause: self._examples[cause] for cause in self._images}

    def most_common(self, limit: int) -> tuple[FailureCause, ...]:
        """The most frequent causes."""
        return tuple(
            FailureCause(status, error, images, tuple(self._examples[status, error]))
            for (status, error), images in self._images.most_common(limit)
        )


def _failure_example(failures: pa.Table, index: int, carry: Sequence[str]) -> FailureExample:
    (row,) = to_rows(failures.slice(index, 1))
    return FailureExample(
        image_id=row["image_id"],
        row=row["input_row"],
        part=row["part"],
        prompt=truncate_text(row["prompt"], MAX_PROMPT_CHARS),
        id=None if row["id"] is None else truncate_text(row["id"], MAX_CARRIED_CHARS),
        carried={
            name: truncate_text(str(row[name]), MAX_CARRIED_CHARS)
            for name in carry
            if row[name] is not None
        },
    )
