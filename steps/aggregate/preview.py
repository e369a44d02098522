"""Judgement of a run by its first shard, for a preview or a canary."""

from dataclasses import dataclass, replace

from imagekiln.steps.aggregate.image_table import open_image_table
from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.report.page import ReportData, write_report
from imagekiln.steps.aggregate.report.pictures import pick_pictures, read_pictures
from imagekiln.steps.aggregate.summary import Summary, SummaryBuilder
from imagekiln.steps.aggregate.verdict import (
    RunVerdict,
    describe_ok,
    describe_rejected,
    find_problems,
    require_finished,
    resolve_policy,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.attempts import merge_stats, read_attempts
from imagekiln.steps.runs.keys import PREVIEW_FOLDER, REPORT_KEY
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.figures import format_count, pluralize
from imagekiln.steps.storage import open_store


@dataclass(frozen=True, slots=True)
class Preview:
    """The page and summary of a run's first shard. `planned_images` counts the whole run."""

    uri: str
    page: str
    planned_images: int
    summary: Summary


def judge_first_shard(uri: str) -> Preview:
    """Write the page of the run's first shard, and judge it by the job's limits and gates.

    Images generated again by a retry count as in the retry. Near-duplicates are not searched.
    Raises Incomplete if images are missing, too many are not ok or a gate marked too many, BadInput
    if the run is damaged, TryAgain if storage fails.
    """
    run = open_run(uri)
    job = run.plan.job
    shard = RunReconciler(run).reconcile(0)
    all_stats = merge_stats(read_attempts(run.store))
    stats = [of_shard for of_shard in all_stats if of_shard.shard == 0]
    plan = _plan_of_first_shard(run.plan)
    with open_image_table(job) as table:
        builder = SummaryBuilder(plan, table)
        builder.add(shard)
        summary = builder.build(lambda _: shard.manifest, resolve_policy(run), stats)
        numbers = pick_pictures(table, plan)
    pictures = read_pictures(plan, numbers, lambda _: shard.manifest)

    target = open_store(run.store.uri_of(PREVIEW_FOLDER))
    page = target.uri_of(REPORT_KEY)
    preview = Preview(run.store.uri, page, run.plan.counts.images, summary)
    verdict = judge_preview(preview, job)
    data = ReportData(run.store.uri, plan, summary, pictures, verdict)
    write_report(run.store, data, target)
    require_finished(verdict)
    return preview


def _plan_of_first_shard(plan: Plan) -> Plan:
    """Return the plan reduced to its first shard."""
    first = plan.shards[:1]
    images = sum(shard.images for shard in first)
    counts = replace(plan.counts, images=images)
    return replace(plan, shards=first, counts=counts, expected=None)


def judge_preview(preview: Preview, job: Job) -> RunVerdict:
    """Judge the first shard of a run."""
    summary = preview.summary
    made = pluralize(summary.images, "image")
    planned = pluralize(preview.planned_images, "is planned", "are planned")
    advice = f"The first {made}; {planned}. They are part of the run: it makes the others."
    if rejected := describe_rejected(summary):
        advice = f"{rejected}. {advice}"
    problems = find_problems(summary, job)
    if not problems:
        return RunVerdict("finished", f"Preview: {describe_ok(summary)}, as the job asks.", advice)
    details = "; ".join(f"{problem}: {details}" for problem, details in problems.items())
    return RunVerdict(
        "failed",
        f"Preview: {'; '.join(problems)}.",
        f"{advice} Change the job before the others are made.",
        error=f"{preview.uri}: the first {made} of {format_count(preview.planned_images)} are not "
        f"as the job asks: {details}. See them in {preview.page}, and change the job.",
    )
