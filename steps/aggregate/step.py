"""The aggregate step: count parts, create the next commit, and write report, card and registry.

Readers use only the commit. The other files are written after it. If the process is killed in
between, the next `aggregate` writes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from imagekiln.steps.aggregate.card import write_card
from imagekiln.steps.aggregate.image_table import open_image_table
from imagekiln.steps.aggregate.near_duplicates import mark_near_duplicates, without_near_duplicates
from imagekiln.steps.aggregate.reconcile import ReconciledShard, RunReconciler
from imagekiln.steps.aggregate.report.page import ReportData, write_report
from imagekiln.steps.aggregate.report.pictures import PictureNumbers, pick_pictures, read_pictures
from imagekiln.steps.aggregate.summary import (
    AcceptancePolicy,
    Summary,
    SummaryBuilder,
    summary_of,
    summary_to_json,
)
from imagekiln.steps.aggregate.verdict import (
    RunVerdict,
    check_gate_names,
    judge_run,
    require_finished,
    resolve_policy,
)
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.job.execution import PricePerHour
from imagekiln.steps.runs.attempts import merge_stats, read_attempts, sum_spent
from imagekiln.steps.runs.commits import (
    Commit,
    CommitKind,
    Head,
    commit_next,
    create_commit,
    is_highest,
)
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.manifest import write_manifest
from imagekiln.steps.runs.registry import RunEntry, register_run
from imagekiln.steps.runs.run import Run, open_run, read_shard_manifest
from imagekiln.steps.runs.stats import RunRate, describe_passes
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.figures import pluralize


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A counted run: the contents of its next commit, and the images of its report.

    `missing_of_retries` are parts of retries that are not generated yet.
    """

    run: Run
    commit: Commit
    summary: Summary
    verdict: RunVerdict
    missing_of_retries: tuple[str, ...]
    pictures: PictureNumbers

    def commit_as(self, kind: CommitKind) -> "CountedRun | None":
        """Create the next commit, unless nothing has changed.

        Returns None if another process created it first. Raises TryAgain.
        """
        head = self.run.head
        same_state = replace(self.commit, kind=head.commit.kind, at=head.commit.at)
        if same_state == head.commit:
            return self
        commit = replace(self.commit, kind=kind)
        new_head = create_commit(self.run.store, head, commit)
        if new_head is None:
            return None
        run = replace(self.run, head=new_head)
        return replace(self, run=run)


def aggregate(
    uri: str,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: PricePerHour | None = None,
) -> Summary:
    """Count all planned images of the run or retry at `uri`, and create the next commit.

    `failed_share` overrides the job's limit. `accept` names gates whose limit is ignored. `price`
    is the price of a device per hour, or a table of prices. It applies to the run until the job is
    submitted again. A finished run keeps its earlier limits and accepted gates.

    Raises Incomplete if images of the run or retry are missing, too many are not ok, or a gate
    marked too many. The counts are committed even then. Raises BadInput if the run is damaged, and
    TryAgain if storage fails or other processes keep changing the run.
    """
    return aggregate_run(open_run(uri), failed_share, accept, price)


def aggregate_run(
    run: Run,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: PricePerHour | None = None,
) -> Summary:
    """Count all planned images of an open run, like `aggregate`."""
    check_gate_names(run.plan.job, accept)

    def attempt(head: Head) -> CountedRun | None:
        priced_head = _with_price(run, head, price)
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


def _with_price(run: Run, head: Head, price: PricePerHour | None) -> Head:
    """Set the price in the terms of a commit, if there is one."""
    if price is None:
        return head
    terms = replace(replace(run, head=head).terms, price_per_hour=price)
    return replace(head, commit=replace(head.commit, terms=terms))


def write_derived(counted: CountedRun) -> None:
    """Write the card and report of a commit, then the registry entry and the success marker.

    If there is a higher commit, card and page are left to the process that created it.
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
    """Register a finished run, and write its success marker."""
    plan = run.plan
    entry = RunEntry(plan.run_id, plan.job.name)
    register_run(run.store.uri, entry)
    message = f"{summary.ok} of {summary.images} images\n"
    run.store.create(SUCCESS_KEY, message.encode())


def finish_run(run: Run) -> Summary:
    """Return the summary of a run with all images, aggregating and registering it if needed."""
    summary = summary_of(run.store, run.head)
    if summary is None or not run.is_finished or not run.store.exists(SUCCESS_KEY):
        return aggregate_run(run)
    mark_finished(run, summary)
    return summary


def count_run(run: Run, policy: AcceptancePolicy, reconciler: RunReconciler) -> CountedRun:
    """Count all planned images of a run, and write the manifests of the next commit.

    Raises BadInput if the run is damaged, TryAgain.
    """
    plan = run.plan
    job = plan.job
    store = run.store
    manifests: list[str] = []
    attempts = read_attempts(store)
    retries = run.head.commit.retries
    with open_image_table(job) as table:
        builder = SummaryBuilder(plan, table)
        for key, shard in _write_manifests(run, reconciler):
            manifests.append(key)
            builder.add(shard)
        if job.gates.near_duplicate is not None:
            manifests = mark_near_duplicates(table, run, manifests)
        summary = builder.build(
            lambda number: read_table(store, manifests[number]),
            policy,
            merge_stats(attempts),
            sum_spent(attempts),
            len(retries),
        )
        pictures = pick_pictures(table, plan)

    verdict = judge_run(summary, job, store.uri)
    missing = reconciler.missing_of_retries
    commit = replace(
        run.head.commit,
        manifests=tuple(manifests),
        retries=tuple(
            retry if retry.is_counted else replace(retry, is_counted=not missing)
            for retry in retries
        ),
        is_complete=not (summary.missing or missing),
        is_finished=verdict.error is None,
        rate=run_rate(run, summary),
        summary=summary_to_json(summary),
    )
    return CountedRun(run, commit, summary, verdict, missing, pictures)


def _write_manifests(run: Run, reconciler: RunReconciler) -> Iterator[tuple[str, ReconciledShard]]:
    has_marks = run.plan.job.gates.near_duplicate is not None

    def write(number: int) -> tuple[str, ReconciledShard]:
        shard = reconciler.reconcile(number)
        if has_marks:
            manifest = without_near_duplicates(shard.manifest)
            shard = replace(shard, manifest=manifest)
        key = write_manifest(run.store, number, shard.manifest, run.head.commit.manifests)
        return key, shard

    return map_ordered(write, len(run.plan.shards))


def run_rate(run: Run, summary: Summary) -> RunRate | None:
    """Return the rate of a run for later estimates; None if it is incomplete or has no figures."""
    plan = run.plan
    images = summary.images - summary.missing
    gpu_seconds = summary.spending.gpu_seconds
    working_seconds = gpu_seconds.drawing + gpu_seconds.idle
    if summary.missing or not images or not summary.work or not working_seconds:
        return None
    return RunRate(
        run_id=plan.run_id,
        digest=plan.model.digest,
        dtype=plan.job.model.dtype,
        speed=plan.job.speed,
        device=", ".join(summary.devices),
        images=images,
        work=summary.work,
        shards=len(plan.shards),
        working_seconds=working_seconds,
        loading_seconds=gpu_seconds.loading,
        passes=describe_passes(plan.job),
    )
