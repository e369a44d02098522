"""Counts of a run's images by status, mark, and cause of failure."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_table import ImageTable, Row, read_rows
from imagekiln.steps.errors import MAX_LINE_CHARS
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_CAUSES = 100
MAX_EXAMPLES = 3
MAX_PROMPT_CHARS = 300
MAX_CARRIED_COLUMNS = 8  # of the input, in an example
MAX_CARRIED_CHARS = 100
# Of a row, its settings or the model: a retry ends with the same error.
PERMANENT_PATTERN = (
    "^(?:Assertion|Attribute|Index|Key|NotImplemented|Overflow|Type|Value|ZeroDivision)Error: "
)
SELECT_CAUSES = f"""
    SELECT status,
        left(split_part(error, chr(10), 1), {MAX_LINE_CHARS}) AS cause,
        count(*) AS images, min(rowid, {MAX_EXAMPLES})
    FROM images WHERE error IS NOT NULL
    GROUP BY status, cause ORDER BY images DESC, min(rowid) LIMIT {MAX_CAUSES}"""


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
        _count_values(manifest["status"]),
        _count_values(pc.list_flatten(manifest["marks"])),
        pc.sum(manifest["byte_size"]).as_py() or 0,
        pc.sum(permanent).as_py() or 0,
    )


def _count_values(column: pa.ChunkedArray) -> Counter[str]:
    entries = pc.value_counts(column).to_pylist()
    return Counter({entry["values"]: entry["counts"] for entry in entries})


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


def find_causes(
    table: ImageTable, plan: Plan, read_manifest: Callable[[int], pa.Table]
) -> tuple[FailureCause, ...]:
    """The most frequent causes, with examples from the manifests."""
    causes = table.fetch(SELECT_CAUSES)
    numbers = chain.from_iterable(examples for *_, examples in causes)
    rows = read_rows(plan, numbers, read_manifest)
    carried = plan.job.carried_names[:MAX_CARRIED_COLUMNS]
    return tuple(
        FailureCause(
            status,
            error,
            images,
            tuple(_failure_example(rows[number], carried) for number in examples),
        )
        for status, error, images, examples in causes
    )


def _failure_example(row: Row, carried: Sequence[str]) -> FailureExample:
    return FailureExample(
        image_id=row["image_id"],
        row=row["input_row"],
        part=row["part"],
        prompt=truncate_text(row["prompt"], MAX_PROMPT_CHARS),
        id=None if row["id"] is None else truncate_text(row["id"], MAX_CARRIED_CHARS),
        carried={
            name: truncate_text(str(row[name]), MAX_CARRIED_CHARS)
            for name in carried
            if row[name] is not None
        },
    )
