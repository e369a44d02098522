"""What a person accepts of a run: a share of images that are not ok, and gates over their limit."""

from collections.abc import Sequence

from imagekiln.steps.aggregate.summary import AcceptancePolicy, summary_of
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runtime.sanitize import format_command


def check_gate_names(job: Job, names: Sequence[str]) -> None:
    """Raise BadInput if one of the gates to accept is not among the job's."""
    for name in names:
        if name not in job.all_gates:
            raise BadInput(
                f"--accept {name}: the job has no such gate; it has {', '.join(job.all_gates)}. "
                "Choose one of them."
            )


def resolve_policy(
    run: Run, failed_share: float | None = None, gates: Sequence[str] = ()
) -> AcceptancePolicy:
    """What is asked for, or else what the job says, with the latest prices of the run's terms.

    What a finished run was accepted with remains accepted when it is aggregated again.
    """
    terms = run.terms
    finished_with = summary_of(run.store, run.head) if run.is_finished else None
    accepted = () if finished_with is None else finished_with.accepted
    if failed_share is None:
        failed_share = terms.failed_share
        if failed_share is None:
            failed_share = run.plan.job.limits.failed_share
        if finished_with is not None:
            failed_share = max(failed_share, finished_with.failed_share)
    accepted_gates = tuple(dict.fromkeys((*accepted, *gates)))
    return AcceptancePolicy(failed_share, accepted_gates, terms.price_per_hour)


def format_aggregate_command(
    run: str, job: Job, failed_share: float, accepted: Sequence[str]
) -> str:
    """The command that aggregates the run with this share of failures and these gates accepted."""
    options = [f"--accept {gate}" for gate in accepted]
    if failed_share != job.limits.failed_share:
        options.insert(0, f"--failed-share {failed_share}")
    return format_command("aggregate", run, *options)
