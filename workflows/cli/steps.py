"""Commands of the steps that pods run, which also allow a run by hand.

Help lists only `plan` and `aggregate`, which people use directly.
"""

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from imagekiln.steps.runtime.machine import add_log_context
from imagekiln.workflows.cli import text
from imagekiln.workflows.cli.options import (
    PATH_OR_URI,
    PodJob,
    examples,
    format_option,
    pod_job_options,
    price_option,
    run_argument,
)
from imagekiln.workflows.cli.terminal import print_note, print_result, print_text

if TYPE_CHECKING:
    from imagekiln.steps.runtime.signals import Stop

outputs_option = cloup.option(
    "--outputs",
    type=click.Path(file_okay=False, path_type=Path),
    hidden=True,
    help="Write what Argo needs of the step here.",
)


@cloup.command(
    hidden=True,
    epilog=examples(
        "imagekiln rewrite job.yaml --set output=s3://bucket/images",
        "imagekiln rewrite job.yaml --fetch",
    ),
)
@pod_job_options
@cloup.option("--fetch", is_flag=True, help="Only download the language model.")
@format_option
def rewrite(job: PodJob, *, fetch: bool) -> None:
    """Rewrite a job's prompts with its language model, for its plan.

    Skips those that are rewritten already: run it again to resume. preview, plan and run do it
    themselves, and so does the workflow of a job that is submitted.
    """
    from imagekiln.steps.rewrite import step
    from imagekiln.steps.runtime.progress import open_progress

    add_log_context("rewrite")
    if fetch:
        print_text(step.fetch_language_model(job.job))
        return
    with open_progress("prompts") as progress:
        result = step.rewrite(job.job, progress)
    print_result(result)


@cloup.command(
    epilog=examples(
        "imagekiln plan job.yaml",
        "imagekiln plan nightly.yaml --date 2026-11-21",
        "imagekiln plan job.yaml --retry",
    )
)
@pod_job_options
@cloup.option("--retry", is_flag=True, help="Plan the next retry of the job's existing run.")
@format_option
# The following commands are for the pods of a workflow.
@cloup.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    hidden=True,
    help="Shards that each pod generates in parallel.",
)
@cloup.option("--gpu-memory", type=float, hidden=True, help="That of the pods' GPUs, in GiB.")
@outputs_option
def plan(
    job: PodJob,
    workers: int,
    gpu_memory: float | None,
    outputs: Path | None,
    *,
    retry: bool,
) -> None:
    """Validate the prompts and write the plan of a run.

    The plan fixes every image, its seed and its shard. Planning an existing run again reuses its
    plan. For a sample of the images, start with `preview`, which plans it as the first shard: a run
    that was planned without one has none.
    """
    from imagekiln.steps.maintain.retry import plan_retry
    from imagekiln.steps.plan.step import make_plan
    from imagekiln.steps.rewrite.step import prompt_rewriter
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.pod.outputs import write_plan_outputs

    gpus = job.job.cluster.parallelism * workers
    if retry or job.retry:
        result = plan_retry(job.job)
    else:
        with open_progress() as progress:
            rewriter = None if job.argo else prompt_rewriter(progress)
            result = make_plan(job.job, rewriter=rewriter, gpu_memory=gpu_memory)
    add_log_context("plan", result.uri)
    if outputs:
        write_plan_outputs(outputs, result, job.job, workers)
    print_result(result, partial(text.format_plan, cluster_gpus=gpus))


@cloup.command(
    hidden=True,
    epilog=examples(
        "imagekiln generate images/shapes-1a2b3c4d5e6f --shard 0",
        "imagekiln generate s3://bucket/nightly --shard 3 --workers 8",
    ),
)
@run_argument
@cloup.option("--shard", type=int, required=True, help="The shard to generate, counted from 0.")
@format_option
@cloup.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Shards to generate in parallel, one per GPU: with 8, --shard 1 means 8 to 15.",
)
@cloup.option(
    "--judge",
    type=click.BOOL,
    default=False,
    hidden=True,
    help="Then fail if the first shard is not as the job's limits and gates ask.",
)
@click.pass_obj
def generate(stop: "Stop", run: str, shard: int, workers: int, *, judge: bool) -> None:
    """Generate the missing images of one shard of a planned run."""
    # Import only what the first step needs, since a device is waiting.
    from imagekiln.steps.runtime.progress import open_progress

    add_log_context("generate", run, shard)
    if workers > 1:
        from imagekiln.workflows.pod.workers import generate_shards

        with open_progress() as progress:
            generate_shards(run, shard, workers, progress, stop)
    else:
        from imagekiln.steps.generate.start import generate as generate_shard
        from imagekiln.steps.runtime.machine import process_age

        age = process_age()
        with open_progress() as progress:
            stats = generate_shard(run, shard, progress, stop, age=age, helps=True)
        print_result(stats, text.format_shard)
    if judge:
        from imagekiln.steps.aggregate.preview import judge_first_shard

        judge_first_shard(run)


@cloup.command(
    epilog=examples(
        "imagekiln aggregate images/shapes-1a2b3c4d5e6f",
        "imagekiln aggregate s3://bucket/nightly --failed-share 0.01 --accept blank",
    )
)
@run_argument
@cloup.option(
    "--failed-share",
    type=click.FloatRange(0, 1),
    help="Accept up to this share of images that are not ok.",
)
@cloup.option(
    "--accept",
    multiple=True,
    metavar="GATE",
    help="Accept what this quality gate marked, whatever its share; repeatable.",
)
@price_option
@outputs_option
@format_option
def aggregate(
    run: str,
    failed_share: float | None,
    accept: tuple[str, ...],
    price: float | None,
    outputs: Path | None,
) -> None:
    """Count every planned image of a run, and judge the run.

    Exits with 3 if images are missing, or more of them are not ok than the job accepts.
    """
    from imagekiln.steps.aggregate.step import aggregate as aggregate_run
    from imagekiln.steps.errors import Incomplete
    from imagekiln.workflows.pod.outputs import read_spending, write_figures, write_parameters

    add_log_context("aggregate", run)
    spent_before = read_spending(run) if outputs else None
    is_counted = False
    try:
        summary = aggregate_run(run, failed_share, accept, price)
        is_counted = True
    except Incomplete:
        is_counted = True
        raise
    finally:  # an incomplete run has figures too
        if outputs:
            write_figures(outputs, run, spent_before, is_counted=is_counted)
    if outputs:
        write_parameters(outputs, {"ok": str(summary.ok)})
    print_result(summary, text.format_summary)


@cloup.command(
    hidden=True,
    epilog=examples("imagekiln copy job.yaml --run images/shapes-1a2b3c4d5e6f"),
)
@pod_job_options
@cloup.option("--run", required=True, metavar="RUN", type=PATH_OR_URI, help="The finished run.")
def copy(job: PodJob, run: str) -> None:
    """Make the copies of a finished run that its job asks for.

    `imagekiln run` does it itself, and so does the workflow of a job that is submitted. Run it
    again to resume.
    """
    from imagekiln.steps.export.step import export_run
    from imagekiln.steps.runtime.progress import open_progress

    add_log_context("export", run)
    with open_progress() as progress:
        results = export_run(job.job, run, progress)
    for result in results:
        print_result(result)


@cloup.command(hidden=True, epilog=examples("imagekiln fetch images/shapes-1a2b3c4d5e6f"))
@run_argument
def fetch(run: str) -> None:
    """Download the model of a planned run into this machine's cache."""
    from imagekiln.steps.generate.start import require_libraries
    from imagekiln.steps.runs.run import open_run

    add_log_context("fetch", run)
    require_libraries()
    open_run(run)

    # Imported only here: torch takes seconds.
    from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models

    print_text(fetch_run_models(run))


@cloup.command(hidden=True, epilog=examples("imagekiln outcome --status Succeeded"))
@outputs_option
@cloup.option("--workflow", default="", hidden=True, help="NAMESPACE/NAME of the workflow.")
@cloup.option("--status", required=True, hidden=True, help="The workflow's phase.")
@cloup.option("--labels", default="", hidden=True, help="The workflow's labels, as JSON.")
@cloup.option("--created-at", default="", hidden=True, help="When it was created, in seconds.")
@cloup.option("--job", default="", hidden=True, help="The name of the job.")
@cloup.option("--images", default="", hidden=True, help="The images that were planned.")
@cloup.option("--figures", default="", hidden=True, help="The numbers of aggregation, as JSON.")
@cloup.option("--report-node", default="", hidden=True, help="The node that has the report.")
def outcome(outputs: Path | None, **facts: str) -> None:
    """Report how a workflow ended: its exit handler.

    Its template sets the options and the environment. Posts to the webhook of Secret
    imagekiln-webhook. A webhook that fails is reported and changes nothing: Argo would take the
    workflow itself for failed.
    """
    from imagekiln.steps.errors import KilnError
    from imagekiln.workflows.pod.outcome import describe_outcome, read_outcome
    from imagekiln.workflows.pod.outputs import EndedWorkflow, run_metric_values, write_parameters
    from imagekiln.workflows.pod.webhook import post_outcome

    workflow = EndedWorkflow(**facts)
    if outputs:
        write_parameters(outputs, run_metric_values(workflow, time.time()))
    ended = read_outcome(workflow, os.environ)
    if ended.run:
        add_log_context("report", ended.run)
    print_text(describe_outcome(ended))
    try:
        post_outcome(ended, os.environ)
    except KilnError as error:
        print_note(f"Nobody was notified: {error}")


@cloup.command(hidden=True, epilog=examples("imagekiln publish --outputs /tmp/imagekiln"))
@cloup.option(
    "--outputs",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Copy the report here, from where Argo stores it.",
)
def publish(outputs: Path) -> None:
    """Give Argo a run's report, for its page: its exit handler.

    Reads the environment that the workflow's template sets.
    """
    from imagekiln.workflows.pod.outcome import ended_run
    from imagekiln.workflows.pod.outputs import leave_report

    run = ended_run(os.environ)
    if run:
        add_log_context("publish-report", run)
    print_text(leave_report(outputs, run))
