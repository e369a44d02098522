"""The run before this one, of the same job's name, and how this one compares with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from imagekiln.steps import runs, summary
from imagekiln.steps.errors import KilnError
from imagekiln.steps.plan import Plan
from imagekiln.steps.runs import Entry
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import Summary
from imagekiln.steps.wording import count, figure, percent, size

SAME = 0.02  # a change smaller than this share is none
Judgement = Literal["better", "worse", "about the same", ""]
T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of this run and of the one before, as people read them."""

    name: str
    now: str
    before: str
    change: str
    judgement: Judgement


def previous(store: Store, plan: Plan) -> Summary | None:
    """The sums of the successful run of this job's name that is registered before this one, or else the last.

    None where there is none, or where it cannot be read: the report does without.
    """
    output, _, run_id = store.uri.rpartition("/")
    if run_id != plan.run_id:
        return None
    try:
        earlier = _before(runs.registered(output or "."), Entry(plan.run_id, plan.job.name))
        return None if earlier is None else summary.load(open_store(f"{output or '.'}/{earlier.run_id}"))
    except KilnError:
        return None


def changes(now: Summary, before: Summary) -> list[Change]:
    """The figures side by side. Where neither more nor less is better, nothing is judged."""
    return [
        _change("images planned", now.images, before.images, count),
        _change("images ok", now.ok, before.ok, count),
        _change("share not ok", _bad(now), _bad(before), percent, better=-1),
        _change("images a second", now.images_per_second, before.images_per_second, figure, better=1),
        _change("device hours", now.device_hours, before.device_hours, figure),
        *_busy(now, before),
        *_gates(now, before),
        *_cost(now, before),
        _change("size of an image", now.bytes / max(1, now.ok), before.bytes / max(1, before.ok), size),
    ]


def _busy(now: Summary, before: Summary) -> list[Change]:
    if now.usage.busy is None or before.usage.busy is None:
        return []
    return [_change("share of time computing", now.usage.busy, before.usage.busy, percent, better=1)]


def _gates(now: Summary, before: Summary) -> list[Change]:
    each = [(gate, now.marks[gate], before.marks[gate]) for gate in now.marks if gate in before.marks]
    return [
        _change(f"marked {gate}", here / max(1, now.images), there / max(1, before.images), percent, better=-1)
        for gate, here, there in each
        if here or there
    ]


def _cost(now: Summary, before: Summary) -> list[Change]:
    if now.cost is None or before.cost is None:
        return []
    return [_change("cost of 1,000 images", now.cost_of_thousand, before.cost_of_thousand, "{:,.2f}".format, better=-1)]


def _before(entries: Sequence[Entry], this: Entry) -> Entry | None:
    earlier = entries[: entries.index(this)] if this in entries else entries
    return next((each for each in reversed(earlier) if each.name == this.name), None)


def _change(name: str, now: T, before: T, said: Callable[[T], str], better: int = 0) -> Change:
    """`better` is 1 where more is better, -1 where less is."""
    grown = now / before - 1 if before else float(now > before)
    change = f"{100 * grown:+.0f} %" if before else ""
    judgement: Judgement = ""
    if better:
        judgement = "about the same" if abs(grown) < SAME else "better" if grown * better > 0 else "worse"
    return Change(name, said(now), said(before), change, judgement)


def _bad(summary: Summary) -> float:
    return summary.not_ok / max(1, summary.images)
