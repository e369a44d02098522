"""The previous run of the same job's name, and how this one compares with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import KilnError
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.registry import RunEntry, iter_successful, read_entries
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_count,
    format_duration,
    format_money,
    format_number,
    format_percent,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

NEGLIGIBLE_CHANGE = 0.02  # a share
MAX_EARLIER_RUNS = 40  # of which all but one may be nights without images

Judgment = Literal["better", "worse", "similar", ""]
Preference = Literal["more", "less", "none"]
T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of this run and of the previous one, as people read them."""

    name: str
    current: str
    previous: str
    difference: str
    judgment: Judgment


def load_previous_summary(store: Store, plan: Plan) -> Summary | None:
    """The last successful run of this job's name before this one that had images to make.

    None where there is none, or where a summary cannot be read: the report does without.
    """
    output, _, folder = store.uri.rpartition("/")
    output = output or "."
    if folder != plan.run_id:
        return None
    try:
        entries = _earlier_entries(read_entries(output), RunEntry(plan.run_id, plan.job.name))
        latest = islice(iter_successful(output, entries), MAX_EARLIER_RUNS)
        summaries = (load_summary(open_store(f"{output}/{entry.run_id}")) for entry in latest)
        return next((summary for summary in summaries if summary.images), None)
    except KilnError:
        return None


def compare_summaries(current: Summary, previous: Summary) -> list[FigureChange]:
    """The figures side by side, judged where more or less of them is better."""
    return [
        _compare("images planned", current.images, previous.images, format_count),
        _compare("images ok", current.ok, previous.ok, format_count),
        _compare(
            "share not ok", _share_not_ok(current), _share_not_ok(previous), format_percent, "less"
        ),
        *_rate_changes(current, previous),
        _compare("device time", current.device_seconds, previous.device_seconds, format_duration),
        *_busy_changes(current, previous),
        *_gate_changes(current, previous),
        *_cost_changes(current, previous),
        _compare("file size of an image", _mean_size(current), _mean_size(previous), format_bytes),
    ]


def _earlier_entries(entries: Sequence[RunEntry], entry: RunEntry) -> list[RunEntry]:
    """The entries of this name before this one, or all where it has none yet; newest first."""
    earlier = entries[: entries.index(entry)] if entry in entries else entries
    same_name = [candidate for candidate in earlier if candidate.name == entry.name]
    return same_name[::-1]


def _rate_changes(current: Summary, previous: Summary) -> list[FigureChange]:
    """The rates, where both runs measured one."""
    if not (current.images_per_second and previous.images_per_second):
        return []
    return [
        _compare(
            "images a second, per device",
            current.images_per_second,
            previous.images_per_second,
            format_number,
            "more",
        )
    ]


def _busy_changes(current: Summary, previous: Summary) -> list[FigureChange]:
    busy = current.usage.busy
    previous_busy = previous.usage.busy
    if busy is None or previous_busy is None:
        return []
    return [_compare("share of time computing", busy, previous_busy, format_percent, "more")]


def _gate_changes(current: Summary, previous: Summary) -> list[FigureChange]:
    """The gates that both runs had, unless neither marked an image."""
    return [
        _compare(
            f"marked {gate}",
            current.marks[gate] / max(1, current.images),
            previous.marks[gate] / max(1, previous.images),
            format_percent,
            "less",
        )
        for gate in current.marks
        if gate in previous.marks and current.marks[gate] + previous.marks[gate] > 0
    ]


def _cost_changes(current: Summary, previous: Summary) -> list[FigureChange]:
    if current.cost is None or previous.cost is None:
        return []
    return [
        _compare(
            "cost of 1,000 images",
            current.cost_per_thousand,
            previous.cost_per_thousand,
            format_money,
            "less",
        )
    ]


def _share_not_ok(summary: Summary) -> float:
    return summary.not_ok / max(1, summary.images)


def _mean_size(summary: Summary) -> float:
    return summary.bytes / max(1, summary.ok)


def _compare(
    name: str,
    current: T,
    previous: T,
    format_value: Callable[[T], str],
    preferred: Preference = "none",
) -> FigureChange:
    growth = current / previous - 1 if previous else float(current > previous)
    difference = f"{100 * growth:+.0f} %" if previous else ""
    return FigureChange(
        name,
        format_value(current),
        format_value(previous),
        difference,
        _judge(growth, preferred),
    )


def _judge(growth: float, preferred: Preference) -> Judgment:
    if preferred == "none":
        return ""
    if abs(growth) < NEGLIGIBLE_CHANGE:
        return "similar"
    return "better" if (growth > 0) == (preferred == "more") else "worse"
