"""What the report tells of a run's figures: each chart in words, as a table, and where it helps as a picture."""

from collections.abc import Callable
from dataclasses import dataclass

from imagekiln.steps.aggregate.counters import Histogram, TopValues
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.aggregate.throughput import Throughput
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    pluralize,
)

MIN_IMAGES = 50  # of fewer, and of fewer shards and bins, words and a table say all
MIN_SHARDS = 8
MIN_BINS = 3


@dataclass(frozen=True, slots=True)
class BarPlot:
    """Counts of images over the bounds of neighbouring bins: one bound more than counts."""

    bounds: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScatterPlot:
    """A rate by shard, where there is one; `slow` shards stand out, the slowest first."""

    rates: tuple[float | None, ...]
    median: float
    slow_shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A line of a table with bars: what, how much as people read it, and of 0 to 1 how much of all that is."""

    name: str
    value: str
    share: float


@dataclass(frozen=True, slots=True)
class StackedBarPlot:
    """Shares of a whole: those `in_turn` make one bar, and each one `beside` them has a bar of its own."""

    sequential: tuple[ShareRow, ...]
    concurrent: tuple[ShareRow, ...]


Plot = BarPlot | ScatterPlot | StackedBarPlot


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `text` tells its figures in words. `drawing` is None where a picture would add nothing."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plot: Plot | None


def throughput_chart(given: Throughput) -> Chart | None:
    """Images a second by shard; None where no shard told of any."""
    told = [rate for rate in given.rates if rate is not None]
    if not told:
        return None
    slow = tuple(each.shard for each in given.slowest)
    worst = f", the slowest shard {slow[0]}" if slow else ""
    text = (
        f"{pluralize(len(told), 'shard')}: the middle one made {format_number(given.median)} images a second, the others between "
        f"{format_number(min(told))} and {format_number(max(told))}. "
        + (
            f"{format_count(given.slow)} made less than 80 % of the middle{worst}."
            if given.slow
            else "None was much slower."
        )
    )
    rows = tuple(
        (format_count(each.shard), format_number(each.images / each.seconds), format_count(each.images), format_duration(each.seconds),
         format_count(each.attempts))
        for each in given.slowest
    )  # fmt: skip
    columns = ("slow shard", "images a second", "images", "time", "attempts")
    drawing = ScatterPlot(given.rates, given.median, slow) if len(told) >= MIN_SHARDS else None
    return Chart("throughput", "Images a second, by shard", text, columns, rows, drawing)


def distribution_charts(summary: Summary) -> list[Chart]:
    """How the images' sizes and the prompts' lengths spread."""
    found = summary.distributions
    return [
        *_distribution_chart("bytes", "Size of an image", "images", found.bytes, format_bytes),
        *_distribution_chart(
            "prompts",
            "Length of the prompt, in characters",
            "prompts",
            found.prompt,
            lambda value: format_count(round(value)),
        ),
    ]


def _distribution_chart(
    name: str, title: str, what: str, found: Histogram, said: Callable[[float], str]
) -> list[Chart]:
    if not found.images:
        return []
    low, high = map(said, found.interquartile_range())
    text = f"From {said(found.least)} to {said(found.most)}; the middle half lies between {low} and {high}."
    if found.least == found.most:
        text = f"All are {said(found.least)}."
    bounds = tuple(map(said, [*(each.low for each in found.bins), found.bins[-1].high]))
    rows = tuple(
        (
            f"{bounds[place]} to {bounds[place + 1]}",
            format_count(each.images),
            format_percent(each.images / found.images),
        )
        for place, each in enumerate(found.bins)
    )
    enough = found.images >= MIN_IMAGES and len(found.bins) >= MIN_BINS
    drawing = BarPlot(bounds, tuple(each.images for each in found.bins)) if enough else None
    return [Chart(name, title, text, (title.lower(), what, "share"), rows, drawing)]


def share_tables(summary: Summary) -> dict[str, list[ShareRow]]:
    """How many images have which shape, steps and guidance."""
    found = summary.distributions
    each = {
        "Width and height, in pixels": found.shapes,
        "Steps": found.steps,
        "Guidance": found.guidance,
    }
    return {title: _share_rows(choices) for title, choices in each.items() if choices.top}


def _share_rows(found: TopValues) -> list[ShareRow]:
    total = sum(each.images for each in found.top) + found.other_images
    some = [
        ShareRow(each.value, format_count(each.images), each.images / total) for each in found.top
    ]
    if not found.other_images:
        return some
    return [
        *some,
        ShareRow(
            f"and {format_count(found.others)} more",
            format_count(found.other_images),
            found.other_images / total,
        ),
    ]
