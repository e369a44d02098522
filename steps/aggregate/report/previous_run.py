"""The run before this one, of the same job's name, and how this one compares with it."""

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

NEGLIGIBLE_CHANGE = 0.02  # a change smaller than this share is none
Judgment = Literal["better", "worse", "about the same", ""]
T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of this run and of the one before, as people read them."""

    name: str
    current: str
    previous: str
    difference: str
    judgment: Judgment


def load_previous_summary(store: Store, plan: Plan) -> Summary | None:
    """The sums of the successful run of this job's name that is registered before this one, or else the last.

    None where there is none, or where it cannot be read: the report does without.
    """
    output, _, run_id = store.uri.rpartition("/")
    if run_id != plan.run_id:
        return None
    try:
        earlier = _previous_entry(
            read_registry(output or "."), RunEntry(plan.run_id, plan.job.name)
        )
        return (
            None
            if earlier is None
            else load_summary(open_store(f"{output or '.'}/{earlier.run_id}"))
        )
    except KilnError:
        return None


def compare_summaries(now: Summary, before: Summary) -> list[FigureChange]:
    """The figures side by side. Where neither more nor less is better, nothing is judged."""
    return [
        _figure_change("images planned", now.images, before.images, format_count),
        _figure_change("images ok", now.ok, before.ok, format_count),
        _figure_change(
            "share not ok", _share_not_ok(now), _share_not_ok(before), format_percent, better=-1
        ),
        _figure_change(
            "images a second",
            now.images_per_second,
            before.images_per_second,
            format_number,
            better=1,
        ),
        _figure_change("device hours", now.device_hours, before.device_hours, format_number),
        *_busy_changes(now, before),
        *_gate_changes(now, before),
        *_cost_changes(now, before),
        _figure_change(
            "size of an image",
            now.bytes / max(1, now.ok),
            before.bytes / max(1, before.ok),
            format_bytes,
        ),
    ]


def _busy_changes(now: Summary, before: Summary) -> list[FigureChange]:
    if now.usage.busy is None or before.usage.busy is None:
        return []
    return [
        _figure_change(
            "share of time computing", now.usage.busy, before.usage.busy, format_percent, better=1
        )
    ]


def _gate_changes(now: Summary, before: Summary) -> list[FigureChange]:
    each = [
        (gate, now.marks[gate], before.marks[gate]) for gate in now.marks if gate in before.marks
    ]
    return [
        _figure_change(
            f"marked {gate}",
            here / max(1, now.images),
            there / max(1, before.images),
            format_percent,
            better=-1,
        )
        for gate, here, there in each
        if here or there
    ]


def _cost_changes(now: Summary, before: Summary) -> list[FigureChange]:
    if now.cost is None or before.cost is None:
        return []
    return [
        _figure_change(
            "cost of 1,000 images",
            now.cost_per_thousand,
            before.cost_per_thousand,
            "{:,.2f}".format,
            better=-1,
        )
    ]


def _previous_entry(entries: Sequence[RunEntry], this: RunEntry) -> RunEntry | None:
    earlier = entries[: entries.index(this)] if this in entries else entries
    return next((each for each in reversed(earlier) if each.name == this.name), None)


def _figure_change(
    name: str, now: T, before: T, said: Callable[[T], str], better: int = 0
) -> FigureChange:
    """`better` is 1 where more is better, -1 where less is."""
    grown = now / before - 1 if before else float(now > before)
    change = f"{100 * grown:+.0f} %" if before else ""
    judgement: Judgment = ""
    if better:
        judgement = (
            "about the same"
            if abs(grown) < NEGLIGIBLE_CHANGE
            else "better"
            if grown * better > 0
            else "worse"
        )
    return FigureChange(name, said(now), said(before), change, judgement)


def _share_not_ok(summary: Summary) -> float:
    return summary.not_ok / max(1, summary.images)
