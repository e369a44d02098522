"""The report's charts: each figure in words, as a table, and where it helps as a plot."""

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

# Below these, the text and the table say it all, and there is no plot.
MIN_IMAGES = 50
MIN_SHARDS = 8
MIN_BINS = 3


@dataclass(frozen=True, slots=True)
class BarPlot:
    """Counts of images in neighboring bins. There is one bound more than counts."""

    bounds: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A row of a table with bars: a name, a value as people read it, and a share from 0 to 1."""

    name: str
    value: str
    share: float


Plot = BarPlot | Throughput


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `text` has its figures in words. `plot` is None where one would add nothing."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plot: Plot | None


def throughput_chart(throughput: Throughput) -> Chart | None:
    """Images a second by shard; None where no shard has a rate."""
    rates = [rate for rate in throughput.rates if rate is not None]
    if not rates:
        return None
    return Chart(
        name="throughput",
        title="Images a second, by shard",
        text=_describe_rates(throughput, rates),
        columns=("slow shard", "images a second", "images", "time", "attempts"),
        rows=tuple(
            (
                format_count(shard.shard),
                format_number(shard.images / shard.seconds),
                format_count(shard.images),
                format_duration(shard.seconds),
                format_count(shard.attempts),
            )
            for shard in throughput.slowest
        ),
        plot=throughput if len(rates) >= MIN_SHARDS else None,
    )


def _describe_rates(throughput: Throughput, rates: list[float]) -> str:
    median = format_number(throughput.median)
    if len(rates) == 1:
        return f"One shard, which made {median} images a second."
    slow = "No shard was much slower."
    if throughput.slow:
        slow = f"{pluralize(throughput.slow, 'shard')} made less than 80 % of it."
    return (
        f"{pluralize(len(rates), 'shard')}, which made between {format_number(min(rates))} and "
        f"{format_number(max(rates))} images a second. The median is {median}. {slow}"
    )


def distribution_charts(summary: Summary) -> list[Chart]:
    """How the images' sizes and the prompts' lengths are distributed."""
    distributions = summary.distributions
    charts = [
        ("bytes", "File size of an image", "images", distributions.bytes, format_bytes),
        (
            "prompts",
            "Length of the prompt, in characters",
            "prompts",
            distributions.prompt,
            lambda value: format_count(round(value)),
        ),
    ]
    for name, histogram in distributions.scores.items():
        charts.append((f"score-{name}", f"Score: {name}", "images", histogram, format_number))
    return [_distribution_chart(*chart) for chart in charts if chart[3].bins]


def _distribution_chart(
    name: str, title: str, unit: str, histogram: Histogram, format_value: Callable[[float], str]
) -> Chart:
    bounds = [format_value(interval.low) for interval in histogram.bins]
    bounds.append(format_value(histogram.bins[-1].high))
    counts = tuple(interval.images for interval in histogram.bins)
    rows = tuple(
        (f"{low} to {high}", format_count(count), format_percent(count / histogram.images))
        for low, high, count in zip(bounds, bounds[1:], counts, strict=False)
    )
    has_plot = histogram.images >= MIN_IMAGES and len(counts) >= MIN_BINS
    return Chart(
        name=name,
        title=title,
        text=_describe_histogram(histogram, format_value),
        columns=(title.lower(), unit, "share"),
        rows=rows,
        plot=BarPlot(tuple(bounds), counts) if has_plot else None,
    )


def _describe_histogram(histogram: Histogram, format_value: Callable[[float], str]) -> str:
    least = format_value(histogram.least)
    if histogram.least == histogram.most:
        return f"All are {least}."
    most = format_value(histogram.most)
    if least == most:
        return f"All are about {least}."
    return f"From {least} to {most}."


def share_tables(summary: Summary) -> dict[str, list[ShareRow]]:
    """How many images have which size, steps and guidance, by title."""
    distributions = summary.distributions
    tables = {
        "Width and height, in pixels": distributions.shapes,
        "Steps": distributions.steps,
        "Guidance": distributions.guidance,
    }
    return {title: _share_rows(values) for title, values in tables.items() if values.top}


def _share_rows(values: TopValues) -> list[ShareRow]:
    listed = sum(value.images for value in values.top)
    total = listed + values.other_images
    counts = [(value.value, value.images) for value in values.top]
    if values.other_images:
        others = f"and {format_count(values.others)} more"
        counts.append((others, values.other_images))
    rows = []
    for name, images in counts:
        row = ShareRow(name, format_count(images), images / total)
        rows.append(row)
    return rows
