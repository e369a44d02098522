"""Counts a run anew for its next commit: manifests, the index of images, and the summary."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from imagekiln.steps.aggregate.image_table import open_image_table
from imagekiln.steps.aggregate.near_duplicates import mark_near_duplicates, without_near_duplicates
from imagekiln.steps.aggregate.reconcile import ReconciledShard, RunReconciler
from imagekiln.steps.aggregate.report.pictures import PictureNumbers, pick_pictures
from imagekiln.steps.aggregate.summary import (
    AcceptancePolicy,
    Summary,
    SummaryBuilder,
    summary_to_json,
)
from imagekiln.steps.aggregate.verdict import RunVerdict, judge_run
from imagekiln.steps.runs.attempts import merge_stats, read_attempts, sum_spent
from imagekiln.steps.runs.commits import Commit, CommitKind, create_commit
from imagekiln.steps.runs.image_id_index import write_image_ids
from imagekiln.steps.runs.manifest import write_manifest
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.stats import RunRate, describe_passes
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.concurrency import map_ordered


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A run with the state that its next commit is to have, and the images for its report.

    `missing_of_retries` are the parts of retries that are still to be made.
    """

    run: Run
    commit: Commit
    summary: Summary
    verdict: RunVerdict
    missing_of_retries: tuple[str, ...]
    pictures: PictureNumbers

    def commit_as(self, kind: CommitKind) -> "CountedRun | None":
        """Create the next commit, unless it would change nothing; None if another has the number.

        Raises TryAgain.
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


def count_run(run: Run, policy: AcceptancePolicy, reconciler: RunReconciler) -> CountedRun:
    """Count every planned image of a run, and write what the next commit will name.

    Raises BadInput on damage, TryAgain.
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
        index = write_image_ids(table.database, plan.counts.images, store)
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
        image_ids=index,
        retries=tuple(
            retry if retry.is_counted else replace(retry, is_counted=not missing)
            for retry in retries
        ),
        is_complete=not (summary.missing or missing),
        is_finished=verdict.error is None,
        rate=run_rate(run, summary),
        summary=summary_to_json(summary),
    )
    return CountedRun(
        run,
        commit,
        summary,
        verdict,
        missing,
        pictures,
    )


def _write_manifests(run: Run, reconciler: RunReconciler) -> Iterator[tuple[str, ReconciledShard]]:
    has_marks = run.plan.job.gates.near_duplicate is not None

    def write(number: int) -> tuple[str, ReconciledShard]:
        shard = reconciler.reconcile(number)
        if has_marks:
            manifest: pa.Table = without_near_duplicates(shard.manifest)
            shard = replace(shard, manifest=manifest)
        counted = run.head.commit.manifests
        key = write_manifest(
            run.store,
            number,
            shard.manifest,
            counted,
        )
        return key, shard

    return map_ordered(write, len(run.plan.shards))


def run_rate(run: Run, summary: Summary) -> RunRate | None:
    """The time that a run took, for the estimate of the next one; None if it took none."""
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
