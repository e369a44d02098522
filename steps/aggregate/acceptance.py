"""What the gates found against what the job lets pass."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.aggregate.summary import AcceptancePolicy, Summary, load_summary
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.job.gates import BLANK, SAFETY, GateSettings
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store

GateStatus = Literal["any", "within", "exceeded", "accepted"]


@dataclass(frozen=True, slots=True)
class GateResult:
    """How many of a run's planned images a gate found, and the share that may be; None where any may."""

    gate: str
    images: int
    total: int
    allowed_share: float | None
    accepted: bool

    @property
    def share(self) -> float:
        """What was found, of all."""
        return self.images / self.total if self.total else 0.0

    @property
    def status(self) -> GateStatus:
        """What follows for the run."""
        if self.allowed_share is None:
            return "any"
        if self.images <= self.allowed_share * self.total:
            return "within"
        return "accepted" if self.accepted else "exceeded"


def check_gate_names(gates: GateSettings, accepted: Sequence[str]) -> None:
    """Raise BadInput where a gate is to be accepted that the job does not have."""
    for name in accepted:
        if name not in gates.all_gates:
            raise BadInput(
                f"--accept {name}: the job has no such gate; it has {', '.join(gates.all_gates)}. Name one of them."
            )


def gate_results(gates: GateSettings, summary: Summary) -> tuple[GateResult, ...]:
    """What each gate found in a run."""
    statuses = {
        BLANK: summary.statuses.get("blank", 0),
        SAFETY: summary.statuses.get("filtered", 0),
    }
    counts = statuses | summary.marks
    return tuple(
        GateResult(name, counts.get(name, 0), summary.images, gate.share, name in summary.accepted)
        for name, gate in gates.all_gates.items()
    )


def exceeded_gates(gates: GateSettings, summary: Summary) -> tuple[str, ...]:
    """The gates that fail a run."""
    return tuple(each.gate for each in gate_results(gates, summary) if each.status == "exceeded")


def require_gates_passed(store: Store, job: Job, summary: Summary) -> None:
    """Raise Incomplete where a gate found more images than its share, unless that was accepted."""
    over = [each for each in gate_results(job.gates, summary) if each.status == "exceeded"]
    if over:
        found = "; ".join(
            f"{each.gate} found {each.images} of {each.total} ({each.share:.3g}, and its share is {each.allowed_share:g})"
            for each in over
        )
        accepted = (*summary.accepted, *(each.gate for each in over))
        raise Incomplete(
            f"{store.uri}: gates found more images than the job lets pass: {found}. See them in the report. "
            f"To accept them: {format_aggregate_command(store.uri, job, summary.failed_share, accepted)}"
        )


MAX_IN_MESSAGE = 10


def resolve_policy(
    store: Store,
    frozen: Plan,
    failed_share: float | None,
    accept: Sequence[str],
    price: float | None = None,
) -> AcceptancePolicy:
    """What is asked for, else what the job says. What a run that is finished was accepted with stays so."""
    share, cost = frozen.job.limits.failed_share, frozen.job.price_per_hour
    before: tuple[str, ...] = ()
    if store.exists(SUCCESS_KEY):
        with suppress(BadInput):  # the summary is about to be written anew
            there = load_summary(store)
            share, before, cost = (
                max(share, there.failed_share),
                there.accepted,
                there.price_per_hour,
            )
    named = tuple(dict.fromkeys((*before, *accept)))
    return AcceptancePolicy(
        share if failed_share is None else failed_share, named, cost if price is None else price
    )


def accept_command(run: str, job: Job, summary: Summary) -> str:
    """The command that accepts all of a run that is not as the job asks."""
    share = max(summary.failed_share, summary.share_to_accept)
    return format_aggregate_command(
        run, job, share, (*summary.accepted, *exceeded_gates(job.gates, summary))
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
        causes = "; ".join(
            f"{each.images} {each.status} ({each.error})"
            for each in summary.failures[:MAX_IN_MESSAGE]
        )
        raise Incomplete(
            f"{store.uri}: {summary.not_ok} of {summary.images} images are not ok: {causes}. To make them again: "
            f"{format_command('retry', store.uri)}. To accept them: {accept_command(store.uri, job, summary)}"
        )


def format_aggregate_command(
    run: str, job: Job, failed_share: float, accepted: Sequence[str]
) -> str:
    """The command that aggregates the run with this share of images that are not ok, and these gates, accepted."""
    share = () if failed_share == job.limits.failed_share else (f"--failed-share {failed_share}",)
    return format_command("aggregate", run, *share, *(f"--accept {gate}" for gate in accepted))
