"""Tables of the report: distributions of sizes, prompts, settings and scores."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from imagekiln.steps.aggregate.image_counts import Histogram, TopValues
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_count,
    format_number,
)


@dataclass(frozen=True, slots=True)
class ShareTable:
    """A table with a name, a value and a bar per row, whose length is a share from 0 to 1.

    `columns` are the headings of names and values.
    """

    title: str
    columns: tuple[str, str]
    rows: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table with cells of plain text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def share_table(
    title: str, columns: tuple[str, str], values: Iterable[tuple[str, float, str]], total: float
) -> ShareTable:
    """Build a table from names, values and formatted values, without values of 0."""
    rows = []
    for name, value, text in values:
        if value > 0:
            rows.append((name, text, value / total))
    return ShareTable(title, columns, tuple(rows))


def distribution_tables(summary: Summary) -> list[ShareTable]:
    """Build the tables of the distributions of a run's images."""
    distributions = summary.distributions
    tables = [
        _histogram_table("File size of an image", distributions.bytes, format_bytes),
        _histogram_table(
            "Length of the prompt, in characters",
            distributions.prompt,
            lambda length: format_count(round(length)),
        ),
    ]
    for name, histogram in distributions.scores.items():
        tables.append(_histogram_table(f"Score: {name}", histogram, format_number))
    tables += [
        _top_values_table("Width and height, in pixels", distributions.shapes),
        _top_values_table("Steps", distributions.steps),
        _top_values_table("Guidance", distributions.guidance),
    ]
    return [table for table in tables if table.rows]


def _histogram_table(
    title: str, histogram: Histogram, format_value: Callable[[float], str]
) -> ShareTable:
    if histogram.bins:
        least = format_value(histogram.least)
        most = format_value(histogram.most)
        title += f": {least}" if least == most else f": {least} to {most}"
    values = [
        (f"{format_value(each.low)} to {format_value(each.high)}", each.images)
        for each in histogram.bins
    ]
    return _images_table(title, values)


def _top_values_table(title: str, values: TopValues) -> ShareTable:
    counts = [(value.value, value.images) for value in values.top]
    counts.append((f"and {format_count(values.others)} more", values.other_images))
    return _images_table(title, counts)


def _images_table(title: str, counts: list[tuple[str, int]]) -> ShareTable:
    total = sum(images for _, images in counts)
    values = []
    for name, images in counts:
        text = format_count(images)
        values.append((name, images, text))
    return share_table(title, ("value", "images"), values, total)
