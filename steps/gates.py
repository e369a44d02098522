"""What the gates found against what the job lets pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps import commands
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.gate_settings import BLANK, SAFETY, Gates
from imagekiln.steps.job import Job
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

Standing = Literal["any", "within", "exceeded", "accepted"]


@dataclass(frozen=True, slots=True)
class Finding:
    """How many of a run's planned images a gate found, and the share that may be; None where any may."""

    gate: str
    images: int
    of: int
    allowed: float | None
    accepted: bool

    @property
    def share(self) -> float:
        """What was found, of all."""
        return self.images / self.of if self.of else 0.0

    @property
    def standing(self) -> Standing:
        """What follows for the run."""
        if self.allowed is None:
            return "any"
        if self.images <= self.allowed * self.of:
            return "within"
        return "accepted" if self.accepted else "exceeded"


def check_names(gates: Gates, accepted: Sequence[str]) -> None:
    """Raise BadInput where a gate is to be accepted that the job does not have."""
    for name in accepted:
        if name not in gates.all:
            raise BadInput(
                f"--accept {name}: the job has no such gate; it has {', '.join(gates.all)}. Name one of them."
            )


def findings(gates: Gates, summary: Summary) -> tuple[Finding, ...]:
    """What each gate found in a run."""
    statuses = {BLANK: summary.statuses.get("blank", 0), SAFETY: summary.statuses.get("filtered", 0)}
    counts = statuses | summary.marks
    return tuple(
        Finding(name, counts.get(name, 0), summary.images, gate.share, name in summary.accepted)
        for name, gate in gates.all.items()
    )


def exceeded(gates: Gates, summary: Summary) -> tuple[str, ...]:
    """The gates that fail a run."""
    return tuple(each.gate for each in findings(gates, summary) if each.standing == "exceeded")


def refuse_exceeded(store: Store, job: Job, summary: Summary) -> None:
    """Raise Incomplete where a gate found more images than its share, unless that was accepted."""
    over = [each for each in findings(job.gates, summary) if each.standing == "exceeded"]
    if over:
        found = "; ".join(
            f"{each.gate} found {each.images} of {each.of} ({each.share:.3g}, and its share is {each.allowed:g})"
            for each in over
        )
        accepted = (*summary.accepted, *(each.gate for each in over))
        raise Incomplete(
            f"{store.uri}: gates found more images than the job lets pass: {found}. See them in the report. "
            f"To accept them: {commands.aggregate(store.uri, job, summary.failed_share, accepted)}"
        )
