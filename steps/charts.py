"""What the report tells of a run's figures: each chart in words, as a table, and where it helps as a picture."""

from collections.abc import Callable
from dataclasses import dataclass

from imagekiln.steps.histogram import Histogram
from imagekiln.steps.summary import Summary
from imagekiln.steps.tally import Choices
from imagekiln.steps.throughput import Throughput
from imagekiln.steps.wording import count, figure, of, percent, seconds, size

FEWEST_IMAGES = 50  # of fewer, and of fewer shards and bins, words and a table say all
FEWEST_SHARDS = 8
FEWEST_BINS = 3


@dataclass(frozen=True, slots=True)
class Bars:
    """Counts of images over the bounds of neighbouring bins: one bound more than counts."""

    bounds: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dots:
    """A rate by shard, where there is one; `slow` shards stand out, the slowest first."""

    rates: tuple[float | None, ...]
    median: float
    slow: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A line of a table with bars: what, how much as people read it, and of 0 to 1 how much of all that is."""

    name: str
    value: str
    share: float


@dataclass(frozen=True, slots=True)
class Stack:
    """Shares of a whole: those `in_turn` make one bar, and each one `beside` them has a bar of its own."""

    in_turn: tuple[Share, ...]
    beside: tuple[Share, ...]


Drawing = Bars | Dots | Stack


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `text` tells its figures in words. `drawing` is None where a picture would add nothing."""

    name: str
    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    drawing: Drawing | None


def rates(given: Throughput) -> Chart | None:
    """Images a second by shard; None where no shard told of any."""
    told = [rate for rate in given.rates if rate is not None]
    if not told:
        return None
    slow = tuple(each.shard for each in given.slowest)
    worst = f", the slowest shard {slow[0]}" if slow else ""
    text = (
        f"{of(len(told), 'shard')}: the middle one made {figure(given.median)} images a second, the others between "
        f"{figure(min(told))} and {figure(max(told))}. "
        + (f"{count(given.slow)} made less than 80 % of the middle{worst}." if given.slow else "None was much slower.")
    )
    rows = tuple(
        (count(each.shard), figure(each.images / each.seconds), count(each.images), seconds(each.seconds),
         count(each.attempts))
        for each in given.slowest
    )  # fmt: skip
    columns = ("slow shard", "images a second", "images", "time", "attempts")
    drawing = Dots(given.rates, given.median, slow) if len(told) >= FEWEST_SHARDS else None
    return Chart("throughput", "Images a second, by shard", text, columns, rows, drawing)


def spreads(summary: Summary) -> list[Chart]:
    """How the images' sizes and the prompts' lengths spread."""
    found = summary.distributions
    return [
        *_spread("bytes", "Size of an image", "images", found.bytes, size),
        *_spread(
            "prompts", "Length of the prompt, in characters", "prompts", found.prompt, lambda value: count(round(value))
        ),
    ]


def _spread(name: str, title: str, what: str, found: Histogram, said: Callable[[float], str]) -> list[Chart]:
    if not found.images:
        return []
    low, high = map(said, found.middle())
    text = f"From {said(found.least)} to {said(found.most)}; the middle half lies between {low} and {high}."
    if found.least == found.most:
        text = f"All are {said(found.least)}."
    bounds = tuple(map(said, [*(each.low for each in found.bins), found.bins[-1].high]))
    rows = tuple(
        (f"{bounds[place]} to {bounds[place + 1]}", count(each.images), percent(each.images / found.images))
        for place, each in enumerate(found.bins)
    )
    enough = found.images >= FEWEST_IMAGES and len(found.bins) >= FEWEST_BINS
    drawing = Bars(bounds, tuple(each.images for each in found.bins)) if enough else None
    return [Chart(name, title, text, (title.lower(), what, "share"), rows, drawing)]


def shares(summary: Summary) -> dict[str, list[Share]]:
    """How many images have which shape, steps and guidance."""
    found = summary.distributions
    each = {
        "Width and height, in pixels": found.shapes,
        "Steps": found.steps,
        "Guidance": found.guidance,
    }
    return {title: _shares(choices) for title, choices in each.items() if choices.top}


def _shares(found: Choices) -> list[Share]:
    total = sum(each.images for each in found.top) + found.other_images
    some = [Share(each.value, count(each.images), each.images / total) for each in found.top]
    if not found.other_images:
        return some
    return [*some, Share(f"and {count(found.others)} more", count(found.other_images), found.other_images / total)]
