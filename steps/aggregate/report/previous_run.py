"""The previous run of the same job's name, and how this one compares with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import KilnError
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.registry import RunEntry, read_registry
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_count,
    format_number,
    format_percent,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

NEGLIGIBLE_CHANGE = 0.02  # a share

Judgment = Literal["better", "worse", "about the same", ""]
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
    """The summary of the successful run of this job's name before this one in the registry.

    Where this run is not registered yet, that is the last one. None where there is none, or it
    cannot be read: the report does without.
    """
    output, _, folder = store.uri.rpartition("/")
    output = output or "."
    if folder != plan.run_id:
        return None
    try:
        entry = _previous_entry(read_registry(output), RunEntry(plan.run_id, plan.job.name))
        return None if entry is None else load_summary(open_store(f"{output}/{entry.run_id}"))
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
        _compare(
            "images a second",
            current.images_per_second,
            previous.images_per_second,
            format_number,
            "more",
        ),
        _compare("device hours", current.device_hours, previous.device_hours, format_number),
        *_busy_changes(current, previous),
        *_gate_changes(current, previous),
        *_cost_changes(current, previous),
        _compare("size of an image", _mean_size(current), _mean_size(previous), format_bytes),
    ]


def _previous_entry(entries: Sequence[RunEntry], entry: RunEntry) -> RunEntry | None:
    earlier = entries[: entries.index(entry)] if entry in entries else entries
    same_name = [candidate for candidate in earlier if candidate.name == entry.name]
    return same_name[-1] if same_name else None


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
            "{:,.2f}".format,
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
        return "about the same"
    return "better" if (growth > 0) == (preferred == "more") else "worse"
