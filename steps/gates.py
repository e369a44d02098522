"""What the gates found against what the job lets pass."""

from collections.abc import Sequence

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


def refuse_exceeded(store: Store, gates: Gates, summary: Summary) -> None:
    """Raise Incomplete where a gate found more images than its share, unless that was accepted."""
    counts = {BLANK: summary.statuses.get("blank", 0), SAFETY: summary.statuses.get("filtered", 0), **summary.marks}
    shares = {name: gate.share for name, gate in gates.all.items() if name not in summary.accepted}
    over = [name for name, share in shares.items() if share is not None and counts[name] > share * summary.images]
    if over:
        found = "; ".join(
            f"{name} found {counts[name]} of {summary.images} ({counts[name] / summary.images:.3g}, "
            f"and its share is {shares[name]:g})"
            for name in over
        )
        accept = "".join(f" --accept {name}" for name in (*summary.accepted, *over))
        raise Incomplete(
            f"{store.uri}: gates found more images than the job lets pass: {found}. See them in the report. "
            f"To accept them: imagekiln aggregate {store.uri} --failed-share {summary.failed_share:g}{accept}"
        )
