"""What a finished run may lack: what its job says, what it was accepted with, and what it is refused for."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagekiln.steps import commands, gates, names
from imagekiln.steps import summary as summaries
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.job import Job
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

LISTED = 10


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a person said of a run: the share of images that need not be ok, the gates whose share does not count,
    and what a device costs an hour.
    """

    failed_share: float
    gates: tuple[str, ...]
    price_per_hour: float | None


def accepted(
    store: Store, frozen: Plan, failed_share: float | None, accept: Sequence[str], price: float | None = None
) -> Accepted:
    """What is asked for, else what the job says. What a run that is finished was accepted with stays so."""
    share, cost = frozen.job.limits.failed_share, frozen.job.price_per_hour
    before: tuple[str, ...] = ()
    if store.exists(names.SUCCESS):
        with suppress(BadInput):  # the summary is about to be written anew
            there = summaries.load(store)
            share, before, cost = max(share, there.failed_share), there.accepted, there.price_per_hour
    named = tuple(dict.fromkeys((*before, *accept)))
    return Accepted(share if failed_share is None else failed_share, named, cost if price is None else price)


def accepting(run: str, job: Job, summary: Summary) -> str:
    """The command that accepts all of a run that is not as the job asks."""
    share = max(summary.failed_share, summary.share_to_accept)
    return commands.aggregate(run, job, share, (*summary.accepted, *gates.exceeded(job.gates, summary)))


def refuse_incomplete(store: Store, job: Job, summary: Summary) -> None:
    """Raise Incomplete where an image is unaccounted for, or a larger share is not ok than is accepted."""
    if summary.missing:
        listed = ", ".join(summary.missing_parts[:LISTED])
        more = f" and {summary.missing_parts_count - LISTED} more" if summary.missing_parts_count > LISTED else ""
        raise Incomplete(
            f"{store.uri}: {summary.missing} of {summary.images} images are missing: {listed}{more}. "
            "Run their shards again."
        )
    if summary.too_many_failed:
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:LISTED])
        raise Incomplete(
            f"{store.uri}: {summary.not_ok} of {summary.images} images are not ok: {causes}. To make them again: "
            f"{commands.on_run('retry', store.uri)}. To accept them: {accepting(store.uri, job, summary)}"
        )
