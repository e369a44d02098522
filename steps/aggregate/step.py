"""The aggregate step: count parts, create the next commit, and write the hints.

Readers use the commit. Report, card, success marker and registry are written after it: a process
that is killed in between leaves them to the next `aggregate`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from imagekiln.steps.aggregate.card import write_card
from imagekiln.steps.aggregate.counting import CountedRun, count_run
from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.report.page import ReportData, write_report
from imagekiln.steps.aggregate.report.pictures import read_pictures
from imagekiln.steps.aggregate.summary import Summary, summary_of
from imagekiln.steps.aggregate.verdict import (
    check_gate_names,
    require_finished,
    resolve_policy,
)
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.job.execution import PricePerHour
from imagekiln.steps.runs.commits import Head, commit_next, is_highest
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.registry import RunEntry, register_run
from imagekiln.steps.runs.run import Run, open_run, read_shard_manifest
from imagekiln.steps.runtime.figures import pluralize


def aggregate(
    uri: str,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: PricePerHour | None = None,
) -> Summary:
    """Count every planned image of the run at `uri`, which may be the address of a retry.

    `failed_share` replaces the job's, `accept` names gates whose limit does not count, and `price`
    is that of a device for an hour, or a table of them: it is the run's until the job is submitted
    again. A finished run stays accepted with what it was accepted with before.

    Raises Incomplete if images are missing, also those of the retry that `uri` names, if too many
    are not ok, or if a gate found too many; BadInput on damage; TryAgain if storage fails, or other
    processes keep changing the run. What was counted is committed even when it raises Incomplete.
    """
    return aggregate_run(open_run(uri), failed_share, accept, price)


def aggregate_run(
    run: Run,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: PricePerHour | None = None,
) -> Summary:
    """Count every planned image of an open run: see `aggregate`."""
    check_gate_names(run.plan.job, accept)

    def attempt(head: Head) -> CountedRun | None:
        priced_head = _priced(run, head, price)
        priced = replace(run, head=priced_head)
        policy = resolve_policy(priced, failed_share, accept)
        reconciler = RunReconciler(priced)
        counted = count_run(priced, policy, reconciler)
        current = replace(run, head=head)
        return replace(counted, run=current).commit_as("aggregate")

    counted = commit_next(run.store, attempt)
    write_derived(counted)
    require_finished(counted.verdict)
    missing = counted.missing_of_retries
    if run.retry is not None and missing:
        parts = pluralize(len(missing), "part of this retry is", "parts of this retry are")
        raise Incomplete(
            f"{run.store.uri}: {parts} missing, the first of them {missing[0]}. "
            "Retry the run again to resume it."
        )
    return counted.summary


def _priced(run: Run, head: Head, price: PricePerHour | None) -> Head:
    """The commit with this price, if there is one."""
    if price is None:
        return head
    terms = replace(replace(run, head=head).terms, price_per_hour=price)
    return replace(head, commit=replace(head.commit, terms=terms))


def write_derived(counted: CountedRun) -> None:
    """Write card and report of a commit, then the registry's entry and the success marker.

    Card and page are left to the process that created a higher commit, if there is one.
    """
    run = counted.run

    def is_current() -> bool:
        return is_highest(run.store, run.head)

    if is_current():
        write_card(run.store, run.plan, counted.summary)
    pictures = read_pictures(run.plan, counted.pictures, partial(read_shard_manifest, run))
    data = ReportData(run.store.uri, run.plan, counted.summary, pictures)
    write_report(run.store, data, is_current=is_current)
    if run.is_finished:
        mark_finished(run, counted.summary)


def mark_finished(run: Run, summary: Summary) -> None:
    """Register a run that is as its job asks."""
    entry = RunEntry(run.plan.run_id, run.plan.job.name)
    register_run(run.store.uri, entry)
    message = f"{summary.ok} of {summary.images} images\n"
    run.store.create(SUCCESS_KEY, message.encode())


def finish_run(run: Run) -> Summary:
    """The summary of a run with nothing left to do, which is registered if it was not."""
    summary = summary_of(run.store, run.head)
    if summary is None or not run.is_finished or not run.store.exists(SUCCESS_KEY):
        return aggregate_run(run)
    mark_finished(run, summary)
    return summary
