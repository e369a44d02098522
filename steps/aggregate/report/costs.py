"""What a run cost by use, what of it was wasted, and how far its estimate was off."""

from collections.abc import Iterator
from dataclasses import dataclass

from imagekiln.steps.aggregate.spending import DevicePrice, Spending
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.runtime.figures import (
    format_device_hours,
    format_duration,
    format_estimate_error,
    format_money,
    format_number,
    format_percent,
    pluralize,
)

USES = {
    "drawing": "drawing images",
    "loading": "starting, loading and compiling",
    "idle": "waiting, and the ends of shards",
    "repeated": "work that was dropped and repeated",
    "total": "all",
}
NOT_OK = "of the drawing, images that are not ok"


@dataclass(frozen=True, slots=True)
class CostRow:
    """A use of devices: its time, its share of all, and its cost, empty without a price."""

    use: str
    time: str
    share: str
    cost: str


@dataclass(frozen=True, slots=True)
class CostSection:
    """What the page says of cost: a table, and sentences below it."""

    rows: tuple[CostRow, ...]
    has_cost: bool
    sentences: tuple[str, ...]


def cost_section(summary: Summary) -> CostSection | None:
    """The section on cost; None where a run took nothing, as far as is known."""
    spending = summary.spending
    if not spending.gpu_seconds.total:
        return None
    return CostSection(
        rows=tuple(_rows(spending)),
        has_cost=spending.cost is not None,
        sentences=tuple(_sentences(summary)),
    )


def _rows(spending: Spending) -> Iterator[CostRow]:
    total = spending.gpu_seconds.total
    for use, label in USES.items():
        seconds = getattr(spending.gpu_seconds, use)
        cost = None if spending.cost is None else getattr(spending.cost, use)
        if seconds:
            yield _row(label, seconds, total, cost)
    if spending.not_ok_seconds:
        yield _row(NOT_OK, spending.not_ok_seconds, total, spending.not_ok_cost)


def _row(label: str, seconds: float, total: float, cost: float | None) -> CostRow:
    return CostRow(
        use=label,
        time=format_duration(seconds),
        share=format_percent(seconds / total),
        cost="" if cost is None else format_money(cost),
    )


def _sentences(summary: Summary) -> Iterator[str]:
    spending = summary.spending
    yield from _image_sentence(summary)
    if spending.lost_attempts:
        yield (
            f"Of {pluralize(spending.attempts, 'attempt')}, each a command or a pod, "
            f"{spending.lost_attempts:,} left no end, as after a kill. What happened after the "
            "last entry in the account, five minutes at most for each, is not counted."
        )
    yield from map(_price_sentence, spending.prices)
    yield from _estimate_sentence(summary)


def _image_sentence(summary: Summary) -> Iterator[str]:
    if not summary.ok:
        return
    spending = summary.spending
    figures = [f"{format_duration(spending.gpu_seconds.total / summary.ok)} of a device"]
    if summary.cost is not None:
        figures.append(f"{format_number(summary.cost / summary.ok)} in the currency of the price")
    yield f"An image that is ok took {', '.join(figures)}."


def _price_sentence(price: DevicePrice) -> str:
    device = price.device or "An unknown device"
    hours = format_device_hours(price.gpu_hours)
    if price.per_hour is None:
        return f"{device}: {hours}, without a price."
    return f"{device}: {hours} at {format_money(price.per_hour)} an hour ({price.source})."


def _estimate_sentence(summary: Summary) -> Iterator[str]:
    expected = summary.expected
    if expected is None:
        return
    sentence = f"Planning estimated {format_device_hours(expected.gpu_hours)}"
    if expected.cost is not None:
        sentence += f" and a cost of {format_money(expected.cost)}"
    sentence += f", {expected.source}"
    if summary.estimate_error is None:
        yield f"{sentence}."
        return
    error = format_estimate_error(summary.estimate_error)
    took = format_device_hours(summary.device_hours)
    yield f"{sentence}. The run took {took}, {error}."
