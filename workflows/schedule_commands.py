"""The commands that leave something on a cluster: templates and schedules."""

from datetime import datetime

import click

from imagekiln.workflows.options import connection_options as reach
from imagekiln.workflows.options import job_options, output_option, workflow_options

DAY_TYPE = click.DateTime(["%Y-%m-%d"])


@click.command()
@job_options
@reach
def apply(job: str, settings: tuple[str, ...], server: str | None, context: str | None) -> None:
    """Register the template of the job's profile, or bring it up to date."""
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.say import print_text

    print_text(f"Applied WorkflowTemplate {client.apply(read_job(job, settings), connect(server, context))}.")


@click.command()
@job_options
@click.option("--cron", required=True, help='When: minute, hour, day, month and weekday, such as "30 1 * * *".')
@click.option("--timezone", default="UTC", show_default=True, help="The time zone of the schedule and of {date}.")
@reach
def schedule(
    job: str, settings: tuple[str, ...], cron: str, timezone: str, server: str | None, context: str | None
) -> None:
    """Have a cluster do the job again and again, each time for the date."""
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows import schedules
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.say import print_text

    name = schedules.schedule(read_job(job, settings), cron, timezone, connect(server, context))
    print_text(f"Applied CronWorkflow {name}. `imagekiln suspend {name}` lets it rest.")


@click.command()
@workflow_options
def suspend(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Let a schedule rest."""
    from imagekiln.workflows import schedules
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.say import print_text

    schedules.suspend(name, namespace, connect(server, context))
    print_text(f"{name} rests. `imagekiln resume {name}` lets it go on.")


@click.command()
@workflow_options
def resume(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Let a schedule go on."""
    from imagekiln.workflows import schedules
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.say import print_text

    schedules.resume(name, namespace, connect(server, context))
    print_text(f"{name} goes on.")


@click.command()
@job_options
@click.option("--from", "first", type=DAY_TYPE, required=True, help="The first day.")
@click.option("--to", "last", type=DAY_TYPE, required=True, help="The last day.")
@click.option("--retry", is_flag=True, help="Make again only what ended failed, blank or missing in those runs.")
@reach
@output_option
def backfill(
    job: str,
    settings: tuple[str, ...],
    first: datetime,
    last: datetime,
    retry: bool,
    server: str | None,
    context: str | None,
    output: str,
) -> None:
    """Submit what the job's schedule would have fired on days that have passed."""
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows import schedules
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.show import print_result
    from imagekiln.workflows.standing import status_table

    argo = connect(server, context)
    begun = schedules.backfill(read_job(job, settings), first.date(), last.date(), argo, retry=retry)
    print_result(begun, output, status_table)


WORKFLOW_COMMANDS = (apply, schedule, suspend, resume, backfill)
