"""What the gates found against what the job lets pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps import commands
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.gate_settings import BLANK, SAFETY, GateSettings
from imagekiln.steps.job import Job
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

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
    statuses = {BLANK: summary.statuses.get("blank", 0), SAFETY: summary.statuses.get("filtered", 0)}
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
            f"To accept them: {commands.format_aggregate_command(store.uri, job, summary.failed_share, accepted)}"
        )
