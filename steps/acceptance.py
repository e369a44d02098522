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

MAX_IN_MESSAGE = 10


@dataclass(frozen=True, slots=True)
class AcceptancePolicy:
    """What a person said of a run: the share of images that need not be ok, the gates whose share does not count,
    and what a device costs an hour.
    """

    failed_share: float
    accepted_gates: tuple[str, ...]
    price_per_hour: float | None


def resolve_policy(
    store: Store, frozen: Plan, failed_share: float | None, accept: Sequence[str], price: float | None = None
) -> AcceptancePolicy:
    """What is asked for, else what the job says. What a run that is finished was accepted with stays so."""
    share, cost = frozen.job.limits.failed_share, frozen.job.price_per_hour
    before: tuple[str, ...] = ()
    if store.exists(names.SUCCESS_KEY):
        with suppress(BadInput):  # the summary is about to be written anew
            there = summaries.load_summary(store)
            share, before, cost = max(share, there.failed_share), there.accepted, there.price_per_hour
    named = tuple(dict.fromkeys((*before, *accept)))
    return AcceptancePolicy(share if failed_share is None else failed_share, named, cost if price is None else price)


def accept_command(run: str, job: Job, summary: Summary) -> str:
    """The command that accepts all of a run that is not as the job asks."""
    share = max(summary.failed_share, summary.share_to_accept)
    return commands.format_aggregate_command(
        run, job, share, (*summary.accepted, *gates.exceeded_gates(job.gates, summary))
    )


def require_complete(store: Store, job: Job, summary: Summary) -> None:
    """Raise Incomplete where an image is unaccounted for, or a larger share is not ok than is accepted."""
    if summary.missing:
        listed = ", ".join(summary.missing_parts[:MAX_IN_MESSAGE])
        more = (
            f" and {summary.missing_parts_count - MAX_IN_MESSAGE} more"
            if summary.missing_parts_count > MAX_IN_MESSAGE
            else ""
        )
        raise Incomplete(
            f"{store.uri}: {summary.missing} of {summary.images} images are missing: {listed}{more}. "
            "Run their shards again."
        )
    if summary.too_many_failed:
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:MAX_IN_MESSAGE])
        raise Incomplete(
            f"{store.uri}: {summary.not_ok} of {summary.images} images are not ok: {causes}. To make them again: "
            f"{commands.format_command('retry', store.uri)}. To accept them: {accept_command(store.uri, job, summary)}"
        )
