"""The run before this one, of the same job's name, and how this one compares with it."""

from dataclasses import dataclass
from typing import Literal

from imagekiln.steps import runs, summary
from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan import Plan
from imagekiln.steps.runs import Entry
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import Summary
from imagekiln.steps.wording import count, figure, percent, size

SAME = 0.02  # a change smaller than this share is none
Judgement = Literal["better", "worse", "about the same", ""]


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
        earlier = _before(runs.registered(output), Entry(plan.run_id, plan.job.name))
        return None if earlier is None else summary.load(open_store(f"{output}/{earlier.run_id}"))
    except BadInput:
        return None


def changes(now: Summary, before: Summary) -> list[Change]:
    """The figures side by side. Where neither more nor less is better, nothing is judged."""
    bad_now, bad_before = _bad(now), _bad(before)
    return [
        _change("images planned", now.images, before.images, count),
        _change("images ok", now.ok, before.ok, count),
        Change("share not ok", percent(bad_now), percent(bad_before), *_points(bad_now, bad_before)),
        _change("images a second and device", now.images_per_second, before.images_per_second, figure, better=1),
        _change("device seconds an image", _each(now), _each(before), figure, better=-1),
        _change("device hours", now.device_hours, before.device_hours, figure),
        _change("bytes an image", now.bytes / max(1, now.ok), before.bytes / max(1, before.ok), size),
    ]
