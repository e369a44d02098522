"""The command line. A command reads its arguments, calls one function, and prints what it returns."""

from pathlib import Path

import click

from imagekiln.workflows.cli.cluster import CLUSTER_COMMANDS
from imagekiln.workflows.cli.maintain import MAINTAIN_COMMANDS
from imagekiln.workflows.cli.options import date_options, job_options, output_option
from imagekiln.workflows.cli.plan import plan
from imagekiln.workflows.cli.terminal import silence_libraries
from imagekiln.workflows.cli.tune import tune
from imagekiln.workflows.cli.workflows import WORKFLOW_COMMANDS

DEMO_JOB = "bundled:demo.yaml"


class KilnGroup(click.Group):
    """Commands whose failures are sentences, and whose exit codes say whether to try again."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; end with the failure's sentence and exit code."""
        from imagekiln.steps.errors import KilnError, TryAgain
        from imagekiln.steps.runtime.signals import Stopped, stop_on_signals
        from imagekiln.workflows.cli.terminal import print_text
        from imagekiln.workflows.pod import outcome as lastword

        try:
            with stop_on_signals(at_once=True) as ctx.obj:
                return super().invoke(ctx)
        except KilnError as error:
            print_text(str(error), err=True)
            lastword.write_termination_message(str(error))
            ctx.exit(error.exit_code)
        except Stopped:
            print_text("Stopped. Run the same command again to go on.", err=True)
            ctx.exit(TryAgain.exit_code)


@click.group(cls=KilnGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="imagekiln")
def main() -> None:
    """Batch image generation: a Parquet file of prompts in, a verified image dataset out."""
    silence_libraries()


@main.command()
@job_options
@date_options
@output_option
def run(job: str, settings: tuple[str, ...], date: str, timezone: str, output: str) -> None:
    """Do the whole job on this machine. Run again, it resumes."""
    _run_job(job, settings, output, date, timezone)


@main.command()
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of the job."
)
@output_option
def demo(settings: tuple[str, ...], output: str) -> None:
    """Run the bundled job with the bundled model."""
    _run_job(DEMO_JOB, settings, output)


def _run_job(
    job: str, settings: tuple[str, ...], output: str, date: str = "", timezone: str = ""
) -> None:
    from imagekiln.steps.local import run as run_job
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.cli.text import format_plan, format_run, print_result
    from imagekiln.workflows.pod.request import JobRequest, resolve_job

    wanted = resolve_job(JobRequest(job, None, settings, "", date, timezone))
    stop = click.get_current_context().obj
    with open_progress() as progress:
        done = run_job(
            wanted, progress, stop, lambda there: print_text(format_plan(there), err=True)
        )
    print_result(done, output, format_run)


@main.command()
@click.argument("run", metavar="RUN")
@click.option("--shard", type=int, required=True, help="The shard to make, counted from 0.")
@click.option(
    "--workers", type=click.IntRange(1), default=1, help="Make a lot of so many shards, a GPU each."
)
@output_option
@click.pass_context
def generate(ctx: click.Context, run: str, shard: int, workers: int, output: str) -> None:
    """Make what is missing of one shard of a planned run, or of as many as there are workers."""
    if workers > 1:
        from imagekiln.workflows.pod import workers as several

        ctx.exit(several.generate_shards(run, shard, workers))
    from imagekiln.steps.generate.step import generate as generate_shard
    from imagekiln.steps.runtime.progress import open_progress
    from imagekiln.workflows.cli.text import format_shard, print_result

    stop = click.get_current_context().obj
    with open_progress() as progress:
        stats = generate_shard(run, shard, progress, stop)
    print_result(stats, output, format_shard)


@main.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--failed-share",
    type=click.FloatRange(0, 1),
    help="Accept this share of images that are not ok.",
)
@click.option(
    "--accept",
    multiple=True,
    metavar="GATE",
    help="Accept what this gate found, whatever its share.",
)
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    help="What a device costs an hour, in place of the job's figure.",
)
@click.option(
    "--outputs", type=click.Path(file_okay=False), help="Leave a copy of the report here, for Argo."
)
@output_option
def aggregate(
    run: str,
    failed_share: float | None,
    accept: tuple[str, ...],
    price: float | None,
    outputs: str | None,
    output: str,
) -> None:
    """Account for every planned image; write manifest, summary, report and _SUCCESS."""
    from imagekiln.steps.aggregate.step import aggregate as aggregate_run
    from imagekiln.workflows.cli.text import format_summary, print_result
    from imagekiln.workflows.pod.outputs import copy_report

    try:
        done = aggregate_run(run, failed_share, accept, price)
    finally:  # an incomplete run has a report too
        if outputs:
            copy_report(Path(outputs), run)
    print_result(done, output, format_summary)


@main.command()
@click.argument("run", metavar="RUN")
@output_option
def verify(run: str, output: str) -> None:
    """Read the whole run back and check it against the plan, by hash."""
    from imagekiln.steps.maintain.verify import verify as verify_run
    from imagekiln.workflows.cli.text import format_verification, print_result

    print_result(verify_run(run), output, format_verification)


@main.command()
@job_options
@click.option(
    "--price", type=click.FloatRange(min=0), help="What a GPU costs an hour, to estimate the cost."
)
@output_option
def estimate(job: str, settings: tuple[str, ...], price: float | None, output: str) -> None:
    """Say what the job would make and take, before anything runs."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.steps.plan.estimate import estimate as estimate_job
    from imagekiln.workflows.cli.text import format_estimate, print_result

    print_result(estimate_job(read_job(job, settings), price), output, format_estimate)


@main.command()
def schema() -> None:
    """Print the job file's JSON Schema, for editors."""
    import json

    from imagekiln.steps.job.job import Job
    from imagekiln.workflows.cli.terminal import print_text

    print_text(json.dumps(Job.model_json_schema(), indent=2))


for command in (
    plan,
    tune,
    *MAINTAIN_COMMANDS,
    *WORKFLOW_COMMANDS,
    *CLUSTER_COMMANDS,
):
    main.add_command(command)
