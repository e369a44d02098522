"""What a run cost by use, what of it was wasted, and how far its estimate was off."""

from collections.abc import Iterator
from dataclasses import dataclass

from imagekiln.steps.aggregate.spending import DevicePrice
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.runs.stats import Expectation
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
class CostSection:
    """What the page says of cost: a table of uses with time, share and cost, and sentences."""

    columns: list[str]
    rows: list[list[str]]
    sentences: str


def cost_section(summary: Summary) -> CostSection | None:
    """The section on cost; None where a run took nothing, as far as is known."""
    spending = summary.spending
    total = spending.gpu_seconds.total
    if not total:
        return None
    seconds = {label: getattr(spending.gpu_seconds, use) for use, label in USES.items()}
    seconds[NOT_OK] = spending.not_ok_seconds
    price = spending.price_per_hour
    rows = []
    for label, duration in seconds.items():
        cells = [label, format_duration(duration), format_percent(duration / total)]
        if price is not None:
            cells.append(format_money(duration / 3600 * price))
        if duration:
            rows.append(cells)
    columns = ["use", "time", "share", "cost"]
    return CostSection(columns[: len(rows[0])], rows, " ".join(_sentences(summary)))


def _sentences(summary: Summary) -> Iterator[str]:
    spending = summary.spending
    if summary.ok:
        figures = f"{format_duration(spending.gpu_seconds.total / summary.ok)} of a device"
        if summary.cost is not None:
            each = format_number(summary.cost / summary.ok)
            figures += f", {each} in the currency of the price"
        yield f"An image that is ok took {figures}."
    if spending.lost_attempts:
        yield (
            f"Of {pluralize(spending.attempts, 'attempt')}, each a command or a pod, "
            f"{spending.lost_attempts:,} left no end, as after a kill. What each did after "
            "it last wrote, a minute at most, is not counted."
        )
    yield from map(_price_sentence, spending.prices)
    if summary.expected is not None:
        yield _estimate_sentence(summary, summary.expected)


def _price_sentence(price: DevicePrice) -> str:
    device = price.device or "An unknown device"
    hours = format_device_hours(price.gpu_hours)
    if price.per_hour is None:
        return f"{device}: {hours}, without a price."
    return f"{device}: {hours} at {format_money(price.per_hour)} an hour ({price.source})."


def _estimate_sentence(summary: Summary, expected: Expectation) -> str:
    sentence = f"Planning estimated {format_device_hours(expected.gpu_hours)}"
    if expected.cost is not None:
        sentence += f" and a cost of {format_money(expected.cost)}"
    sentence += f", {expected.source}."
    if summary.estimate_error is None:
        return sentence
    error = format_estimate_error(summary.estimate_error)
    return f"{sentence} The run took {format_device_hours(summary.device_hours)}, {error}."
