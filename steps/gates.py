"""What the gates found against what the job lets pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.gate_settings import BLANK, SAFETY, Gates
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary


def check_names(gates: Gates, accepted: Sequence[str]) -> None:
    """Raise BadInput where a gate is to be accepted that the job does not have."""
    for name in accepted:
        if name not in gates.all:
            raise BadInput(
                f"--accept {name}: the job has no such gate; it has {', '.join(gates.all)}. Name one of them."
            )


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A gate that found more images than its share lets pass."""

    name: str
    found: int
    share: float


def exceeded(gates: Gates, summary: Summary) -> tuple[Exceeded, ...]:
    """The gates that fail the run: those that found too many images, and were not accepted."""
    counts = {BLANK: summary.statuses.get("blank", 0), SAFETY: summary.statuses.get("filtered", 0), **summary.marks}
    shares = {name: gate.share for name, gate in gates.all.items() if name not in summary.accepted}
    return tuple(
        Exceeded(name, counts[name], share)
        for name, share in shares.items()
        if share is not None and counts[name] > share * summary.images
    )


def to_accept(uri: str, summary: Summary, over: Sequence[Exceeded]) -> str:
    """The command with which the run would be accepted."""
    names = (*summary.accepted, *(each.name for each in over))
    accept = "".join(f" --accept {name}" for name in names)
    return f"imagekiln aggregate {quote(uri)} --failed-share {summary.failed_share:g}{accept}"


def refuse_exceeded(store: Store, gates: Gates, summary: Summary) -> None:
    """Raise Incomplete where a gate found more images than its share, unless that was accepted."""
    if over := exceeded(gates, summary):
        found = "; ".join(
            f"{each.name} found {each.found} of {summary.images} ({each.found / summary.images:.3g}, "
            f"and its share is {each.share:g})"
            for each in over
        )
        raise Incomplete(
            f"{store.uri}: gates found more images than the job lets pass: {found}. See them in the report. "
            f"To accept them: {to_accept(store.uri, summary, over)}"
        )
