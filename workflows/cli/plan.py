"""The command that plans: a person's job from a file, a pod's from its environment."""

from pathlib import Path

import click

from imagekiln.workflows.cli.options import date_options, output_option


@click.command()
@click.argument("job", metavar="[JOB]", required=False)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of the job."
)
@date_options
@click.option(
    "--retry", is_flag=True, help="Plan the next round of the job's run, which must be there."
)
@click.option(
    "--argo",
    is_flag=True,
    help="Take the job from the environment that a workflow's template sets.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="What `device: auto` means: what the pods have.",
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, help="How many shards a pod makes at once."
)
@click.option(
    "--outputs", type=click.Path(file_okay=False), help="Leave run and counts here, for Argo."
)
@output_option
def plan(
    job: str | None,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    retry: bool,
    argo: bool,
    device: str | None,
    workers: int,
    outputs: str | None,
    output: str,
) -> None:
    """Plan the job: check its prompts, and freeze what every pod will do."""
    import os

    from imagekiln.steps.maintain.retry import plan_retry
    from imagekiln.steps.plan.step import make_plan
    from imagekiln.workflows.cli.text import format_plan, format_round_plan, print_result
    from imagekiln.workflows.pod.outputs import write_plan_outputs
    from imagekiln.workflows.pod.request import JobRequest, request_from_environment, resolve_job

    if argo == (job is not None):
        raise click.UsageError("Name a JOB, or say --argo.")
    asked = (
        JobRequest(job, None, settings, "", date, timezone, retry)
        if job
        else request_from_environment(os.environ)
    )
    wanted = resolve_job(asked, device)
    again = retry or asked.retry
    done = plan_retry(wanted) if again else make_plan(wanted)
    if outputs:
        write_plan_outputs(Path(outputs), done, wanted.cluster, workers)
    print_result(done, output, format_round_plan if again else format_plan)
