"""Histograms and frequent values of a run's images."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from imagekiln.steps.aggregate.image_table import ImageTable

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


@dataclass(frozen=True, slots=True)
class Bin:
    """Number of values over `low` and up to `high`."""

    low: float
    high: float
    images: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in about 24 bins with round bounds. `least` and `most` are exact."""

    least: int | float = 0
    most: int | float = 0
    bins: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A setting's value, and the number of images that have it."""

    value: str
    images: int


@dataclass(frozen=True, slots=True)
class TopValues:
    """A setting's most frequent values; `others` counts the rarer ones, and their images."""

    top: tuple[ValueCount, ...] = ()
    others: int = 0
    other_images: int = 0


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions over planned images, but `bytes` and `scores` over those that are ok.

    Prompts are measured in characters, shapes in pixels.
    """

    bytes: Histogram = field(default_factory=Histogram)
    prompt: Histogram = field(default_factory=Histogram)
    shapes: TopValues = field(default_factory=TopValues)
    steps: TopValues = field(default_factory=TopValues)
    guidance: TopValues = field(default_factory=TopValues)
    scores: dict[str, Histogram] = field(default_factory=dict)


def find_distributions(table: ImageTable, scores: Iterable[str]) -> Distributions:
    """The distributions of the images of a table."""
    return Distributions(
        bytes=_histogram(table, "byte_size"),
        prompt=_histogram(table, "prompt"),
        shapes=_top_values(table, "width || ' \N{MULTIPLICATION SIGN} ' || height"),
        steps=_top_values(table, "steps"),
        guidance=_top_values(table, "guidance", "{:g}".format),
        scores={name: _histogram(table, table.values[name], "status = 'ok'") for name in scores},
    )


def _histogram(table: ImageTable, value: str, condition: str = "true") -> Histogram:
    """A histogram of finite numbers."""
    sql = HISTOGRAM.format(value=value, condition=condition)
    [(least, most, counts)] = table.fetch(sql)
    if least is None:
        return Histogram()
    bounds = pairwise([least, *counts])
    bins = [Bin(*bound, images) for bound, images in zip(bounds, counts.values(), strict=True)]
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
