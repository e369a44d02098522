"""What a finished run may lack: what its job says, what it was accepted with, and what it is refused for."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from imagekiln.steps import names
from imagekiln.steps import summary as summaries
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

LISTED = 10


@dataclass(frozen=True, slots=True)
class Accepted:
    """The share of images that need not be ok, and the gates whose share does not count."""

    failed_share: float
    gates: tuple[str, ...]


def accepted(store: Store, frozen: Plan, failed_share: float | None, gates: Sequence[str]) -> Accepted:
    """What is asked for, else what the job says. What a run that is finished was accepted with stays so."""
    share = frozen.job.limits.failed_share
    before: tuple[str, ...] = ()
    if store.exists(names.SUCCESS):
        with suppress(BadInput):  # the summary is about to be written anew
            there = summaries.load(store)
            share, before = max(share, there.failed_share), there.accepted
    return Accepted(share if failed_share is None else failed_share, tuple(dict.fromkeys((*before, *gates))))


def refuse_incomplete(store: Store, summary: Summary) -> None:
    """Raise Incomplete where an image is unaccounted for, or a larger share is not ok than is accepted."""
    if summary.missing:
        listed = ", ".join(summary.missing_parts[:LISTED])
        more = f" and {summary.missing_parts_count - LISTED} more" if summary.missing_parts_count > LISTED else ""
        raise Incomplete(
            f"{store.uri}: {summary.missing} of {summary.images} images are missing: {listed}{more}. "
            "Run their shards again."
        )
    bad = summary.not_ok
    if bad > summary.failed_share * summary.images:
        there = quote(store.uri)
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:LISTED])
        raise Incomplete(
            f"{store.uri}: {bad} of {summary.images} images are not ok: {causes}. To make them again: "
            f"imagekiln retry {there}. To accept them: "
            f"imagekiln aggregate {there} --failed-share {summary.share_to_accept}"
        )
