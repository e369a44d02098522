"""What a person accepts of a run: a share of images that are not ok, and gates over their limit."""

from collections.abc import Sequence
from dataclasses import replace

from imagekiln.steps.aggregate.summary import AcceptancePolicy, Summary, load_summary
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.rounds import Run
from imagekiln.steps.runs.terms import read_terms
from imagekiln.steps.runtime.sanitize import format_command


def check_gate_names(job: Job, names: Sequence[str]) -> None:
    """Raise BadInput where one of the gates to accept is not among the job's."""
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

    What a finished run was accepted with remains accepted when it is aggregated again, also where
    that was interrupted.
    """
    current = _current_policy(run)
    accepted_gates = dict.fromkeys((*current.accepted_gates, *gates))
    return replace(
        current,
        failed_share=current.failed_share if failed_share is None else failed_share,
        accepted_gates=tuple(accepted_gates),
    )


def _current_policy(run: Run) -> AcceptancePolicy:
    """The policy by the terms of the run, and what it was accepted with if it ever was."""
    job = run.plan.job
    terms = read_terms(run.store, job)
    failed_share = job.limits.failed_share if terms.failed_share is None else terms.failed_share
    if run.is_finished or run.is_suspended:
        summary = _readable_summary(run)
        if summary is not None:
            failed_share = max(failed_share, summary.failed_share)
            return AcceptancePolicy(failed_share, summary.accepted, terms.price_per_hour)
    return AcceptancePolicy(failed_share, (), terms.price_per_hour)


def _readable_summary(run: Run) -> Summary | None:
    """The run's summary; None where it is damaged, since it is about to be written again."""
    try:
        return load_summary(run.store)
    except BadInput:
        return None


def format_aggregate_command(
    run: str, job: Job, failed_share: float, accepted: Sequence[str]
) -> str:
    """The command that aggregates the run with this share of failures and these gates accepted."""
    options = [f"--accept {gate}" for gate in accepted]
    if failed_share != job.limits.failed_share:
        options.insert(0, f"--failed-share {failed_share}")
    return format_command("aggregate", run, *options)
