"""The command line. A command reads its arguments, calls one function, and prints what it returns."""

from collections.abc import Callable
from typing import ParamSpec

import click

P = ParamSpec("P")
DEMO = "bundled:demo.yaml"


class Commands(click.Group):
    """Commands whose failures are sentences, and whose exit codes say whether to try again."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; end with the failure's sentence and exit code."""
        from imagekiln.steps.errors import KilnError, TryAgain
        from imagekiln.steps.stop import Stopped, on_signals

        try:
            with on_signals(at_once=True) as ctx.obj:
                return super().invoke(ctx)
        except KilnError as error:
            click.echo(str(error), err=True)
            ctx.exit(error.exit_code)
        except Stopped:
            click.echo("Stopped. Run the same command again to go on.", err=True)
            ctx.exit(TryAgain.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="imagekiln")
def main() -> None:
    """Batch image generation: a Parquet file of prompts in, a verified image dataset out."""


def output_option(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user choose text or JSON."""
    kinds = click.Choice(["text", "json"])
    return click.option("--output", type=kinds, default="text", show_default=True, help="How to print.")(command)


def job_options(command: Callable[P, None]) -> Callable[P, None]:
    """Take a JOB and settings on top of it."""
    setting = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of the job.")
    return click.argument("job", metavar="JOB")(setting(command))


@main.command()
@job_options
@output_option
def run(job: str, settings: tuple[str, ...], output: str) -> None:
    """Do the whole job on this machine. Run again, it resumes."""
    _run(job, settings, output)


@main.command()
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of the job.")
@output_option
def demo(settings: tuple[str, ...], output: str) -> None:
    """Run the bundled job with the bundled model."""
    _run(DEMO, settings, output)


def _run(job: str, settings: tuple[str, ...], output: str) -> None:
    from imagekiln.steps.jobfile import read_job
    from imagekiln.steps.progress import shown
    from imagekiln.steps.run import run as run_job
    from imagekiln.workflows.show import planned, ran, show

    stop = click.get_current_context().obj
    with shown() as progress:
        done = run_job(read_job(job, settings), progress, stop, lambda there: click.echo(planned(there), err=True))
    show(done, output, ran)


@main.command()
@job_options
@output_option
def plan(job: str, settings: tuple[str, ...], output: str) -> None:
    """Plan the job: check its prompts, and freeze what every pod will do."""
    from imagekiln.steps.jobfile import read_job
    from imagekiln.steps.planning import make_plan
    from imagekiln.workflows.show import planned, show

    show(make_plan(read_job(job, settings)), output, planned)


@main.command()
@click.argument("run", metavar="RUN")
@click.option("--shard", type=int, required=True, help="The shard to make, counted from 0.")
@output_option
def generate(run: str, shard: int, output: str) -> None:
    """Make what is missing of one shard of a planned run."""
    from imagekiln.steps.generate import generate as generate_shard
    from imagekiln.steps.progress import shown
    from imagekiln.workflows.show import generated, show

    stop = click.get_current_context().obj
    with shown() as progress:
        stats = generate_shard(run, shard, progress, stop)
    show(stats, output, generated)


@main.command()
@click.argument("run", metavar="RUN")
@click.option("--failed-share", type=click.FloatRange(0, 1), help="Accept this share of images that are not ok.")
@output_option
def aggregate(run: str, failed_share: float | None, output: str) -> None:
    """Account for every planned image; write manifest, summary, report and _SUCCESS."""
    from imagekiln.steps.aggregate import aggregate as aggregate_run
    from imagekiln.workflows.show import show, summed

    show(aggregate_run(run, failed_share), output, summed)


@main.command()
@click.argument("run", metavar="RUN")
@output_option
def verify(run: str, output: str) -> None:
    """Read the whole run back and check it against the plan, by hash."""
    from imagekiln.steps.verify import verify as verify_run
    from imagekiln.workflows.show import show, verified

    show(verify_run(run), output, verified)


@main.command()
@job_options
@click.option("--price", type=click.FloatRange(min=0), help="What a GPU costs an hour, to estimate the cost.")
@output_option
def estimate(job: str, settings: tuple[str, ...], price: float | None, output: str) -> None:
    """Say what the job would make and take, before anything runs."""
    from imagekiln.steps.estimate import estimate as estimate_job
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows.show import estimated, show

    show(estimate_job(read_job(job, settings), price), output, estimated)


@main.command()
def schema() -> None:
    """Print the job file's JSON Schema, for editors."""
    import json

    from imagekiln.steps.job import Job

    click.echo(json.dumps(Job.model_json_schema(), indent=2))
