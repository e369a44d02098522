"""Counts of a run's images by status, mark and cause of failure, and their distributions."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_table import ImageTable, Row, read_rows
from imagekiln.steps.errors import MAX_LINE_CHARS
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_BINS = 24
MAX_TOP_VALUES = 12
HISTOGRAM = f"""
    WITH finite AS MATERIALIZED (
        SELECT {{value}} AS value FROM images WHERE isfinite({{value}}) AND {{condition}}
    ), bounds AS (
        SELECT equi_width_bins(min(value), max(value), {MAX_BINS}, true) FROM finite
    )
    SELECT min(value), max(value), histogram(value, (FROM bounds)) FROM finite"""
TOP_VALUES = f"""
    SELECT value, count(*) AS images, count(*) OVER (), sum(count(*)) OVER ()
    FROM (SELECT {{value}} AS value FROM images) WHERE value IS NOT NULL
    GROUP BY value ORDER BY images DESC, value LIMIT {MAX_TOP_VALUES}"""
MAX_CAUSES = 100
MAX_EXAMPLES = 3
MAX_PROMPT_CHARS = 300
MAX_CARRIED_COLUMNS = 8  # columns of the input in an example
MAX_CARRIED_CHARS = 100
# Errors caused by a row, its settings or the model. A retry would fail with the same error.
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
    """Counts of images by status and by mark, and the bytes of stored images.

    `permanent_failures` cannot be fixed by a retry.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    permanent_failures: int = 0

    def __add__(self, other: "ImageCounts") -> "ImageCounts":
        """Add two counts."""
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


def count_values(column: pa.ChunkedArray) -> Counter[str]:
    """Count the distinct values of a column."""
    entries = pc.value_counts(column).to_pylist()
    return Counter({entry["values"]: entry["counts"] for entry in entries})


def is_permanent(error: str) -> bool:
    """Return whether a retry would fail with the same error."""
    return re.match(PERMANENT_PATTERN, error) is not None


def permanent_mask(statuses: pa.Array, errors: pa.Array) -> pa.Array:
    """Return a mask of the images that failed and that a retry cannot fix."""
    has_permanent_error = pc.match_substring_regex(errors, PERMANENT_PATTERN)
    is_failed = pc.equal(statuses, "failed")
    return pc.and_(is_failed, pc.fill_null(has_permanent_error, False))


@dataclass(frozen=True, slots=True)
class FailureExample:
    """An example of an image that is not ok, and the part with its row.

    `id` is the id of the prompt row. `columns` has the first carried columns. Long strings are
    truncated.
    """

    image_id: str
    row: int
    part: str
    prompt: str
    id: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A reason why images are not ok, with the number of images and a few examples."""

    status: str
    error: str
    images: int
    examples: tuple[FailureExample, ...] = ()

    @property
    def is_permanent(self) -> bool:
        """Return whether a retry would fail with the same error."""
        return self.status == "failed" and is_permanent(self.error)


def find_causes(
    table: ImageTable, plan: Plan, read_manifest: Callable[[int], pa.Table]
) -> tuple[FailureCause, ...]:
    """Find the most frequent causes, with examples from the manifests."""
    causes = table.fetch(SELECT_CAUSES)
    numbers = chain.from_iterable(examples for *_, examples in causes)
    rows = read_rows(plan, numbers, read_manifest)
    names = plan.job.carried_names[:MAX_CARRIED_COLUMNS]
    return tuple(
        FailureCause(
            status,
            error,
            images,
            tuple(_failure_example(rows[number], names) for number in examples),
        )
        for status, error, images, examples in causes
    )


def _failure_example(row: Row, names: Sequence[str]) -> FailureExample:
    return FailureExample(
        image_id=row["image_id"],
        row=row["input_row"],
        part=row["part"],
        prompt=truncate_text(row["prompt"], MAX_PROMPT_CHARS),
        id=None if row["id"] is None else truncate_text(row["id"], MAX_CARRIED_CHARS),
        columns={
            name: truncate_text(str(row[name]), MAX_CARRIED_CHARS)
            for name in names
            if row[name] is not None
        },
    )


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a histogram, with the number of values in (`low`, `high`]."""

    low: float
    high: float
    images: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram with about 24 bins of round bounds. `least` and `most` are exact."""

    least: int | float = 0
    most: int | float = 0
    bins: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A value of a setting, and the number of images with it."""

    value: str
    images: int


@dataclass(frozen=True, slots=True)
class TopValues:
    """Most frequent values of a setting; `others` counts the rest, `other_images` their images."""

    top: tuple[ValueCount, ...] = ()
    others: int = 0
    other_images: int = 0


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions over planned images; `bytes` and `scores` only over images that are ok.

    Prompt lengths are in characters, shapes in pixels.
    """

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)
    scores: dict[str, Histogram] = field(default_factory=dict)


def find_distributions(table: ImageTable, scores: Iterable[str]) -> Distributions:
    """Compute distributions over the images of a table."""
    return Distributions(
        bytes=_histogram(table, "byte_size"),
        prompt=_histogram(table, "prompt"),
        shapes=_top_values(table, "width || ' \N{MULTIPLICATION SIGN} ' || height"),
        steps=_top_values(table, "steps"),
        guidance=_top_values(table, "guidance", "{:g}".format),
        scores={name: _histogram(table, table.values[name], "status = 'ok'") for name in scores},
    )


def _histogram(table: ImageTable, value: str, condition: str = "true") -> Histogram:
    """Compute a histogram of the finite values."""
    sql = HISTOGRAM.format(value=value, condition=condition)
    [(least, most, counts)] = table.fetch(sql)
    if least is None:
        return Histogram()
    bins = []
    low = least
    for high, images in counts.items():
        bins.append(Bin(low, high, images))
        low = high
    return Histogram(least, most, tuple(bins))


def _top_values(
    table: ImageTable, value: str, format_value: Callable[[Any], str] = str
) -> TopValues:
    rows = table.fetch(TOP_VALUES.format(value=value))
    if not rows:
        return TopValues()
    top = [ValueCount(format_value(value), images) for value, images, _, _ in rows]
    *_, values, images = rows[0]
    return TopValues(
        top=tuple(top),
        others=values - len(top),
        other_images=images - sum(count.images for count in top),
    )
