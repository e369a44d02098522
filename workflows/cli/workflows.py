"""The commands for a job on a cluster. Each calls one function of the client, and prints what it gives."""

from datetime import datetime

import click

from imagekiln.workflows.cli.options import connection_options as reach
from imagekiln.workflows.cli.options import (
    date_options,
    job_options,
    namespace_options,
    output_option,
    workflow_options,
)

DAY_TYPE = click.DateTime(["%Y-%m-%d"])


@click.command()
@job_options
@reach
def apply(job: str, settings: tuple[str, ...], server: str | None, context: str | None) -> None:
    """Register the template of the job's profile, or bring it up to date."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    print_text(
        f"Applied WorkflowTemplate {client.apply(read_job(job, settings), connect(server, context))}."
    )


@click.command()
@job_options
@click.option(
    "--cron",
    required=True,
    help='When: minute, hour, day, month and weekday, such as "30 1 * * *".',
)
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the schedule and of {date}.",
)
@reach
def schedule(
    job: str,
    settings: tuple[str, ...],
    cron: str,
    timezone: str,
    server: str | None,
    context: str | None,
) -> None:
    """Have a cluster do the job again and again, each time for the date."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules
    from imagekiln.workflows.client.connect import connect

    name = schedules.schedule(read_job(job, settings), cron, timezone, connect(server, context))
    print_text(f"Applied CronWorkflow {name}. `imagekiln suspend {name}` lets it rest.")


@click.command()
@workflow_options
def suspend(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Let a schedule rest."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules
    from imagekiln.workflows.client.connect import connect

    schedules.suspend(name, namespace, connect(server, context))
    print_text(f"{name} rests. `imagekiln resume {name}` lets it go on.")


@click.command()
@workflow_options
def resume(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Let a schedule go on."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules
    from imagekiln.workflows.client.connect import connect

    schedules.resume(name, namespace, connect(server, context))
    print_text(f"{name} goes on.")


@click.command()
@job_options
@click.option("--from", "first", type=DAY_TYPE, required=True, help="The first day.")
@click.option("--to", "last", type=DAY_TYPE, required=True, help="The last day.")
@click.option(
    "--retry",
    is_flag=True,
    help="Make again only what ended failed, blank or missing in those runs.",
)
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
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.status import status_table
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import schedules
    from imagekiln.workflows.client.connect import connect

    argo = connect(server, context)
    begun = schedules.backfill(
        read_job(job, settings), first.date(), last.date(), argo, retry=retry
    )
    print_result(begun, output, status_table)


@click.command()
@job_options
@date_options
@reach
@click.option(
    "--retry",
    is_flag=True,
    help="Make again only what ended failed, blank or missing in the job's run.",
)
@click.option(
    "--watch", "watched", is_flag=True, help="Stay until it has ended; the exit code then says how."
)
@output_option
def submit(
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    server: str | None,
    context: str | None,
    retry: bool,
    watched: bool,
    output: str,
) -> None:
    """Have a cluster do the job. Submitted twice, it is done once."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.status import print_status, print_until_ended
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    argo = connect(server, context)
    begun = client.submit(read_job(job, settings), date, timezone, argo, retry=retry)
    print_status(begun, output)
    if watched:
        print_until_ended(client.watch(begun.name, begun.namespace, argo), output)


@click.command()
@workflow_options
@output_option
def watch(name: str, namespace: str, server: str | None, context: str | None, output: str) -> None:
    """Show a workflow's pods, images, rate and time left until it has ended; the exit code says how."""
    from imagekiln.workflows.cli.status import print_until_ended
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    print_until_ended(client.watch(name, namespace, connect(server, context)), output)


@click.command()
@workflow_options
@click.option(
    "--seconds", type=click.FloatRange(0), help="Give up after so long, with exit code 75."
)
@output_option
def wait(
    name: str,
    namespace: str,
    server: str | None,
    context: str | None,
    seconds: float | None,
    output: str,
) -> None:
    """Wait in silence until a workflow has ended; the exit code says how."""
    from imagekiln.workflows.cli.status import exit_with_status, print_status
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    ended = client.wait(name, namespace, seconds, connect(server, context))
    print_status(ended, output)
    exit_with_status(ended)


@click.command()
@workflow_options
@output_option
def result(name: str, namespace: str, server: str | None, context: str | None, output: str) -> None:
    """Say how a workflow ended; the exit code says so too, and 75 that it has not."""
    from imagekiln.workflows.cli.status import exit_with_status, print_status
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    ended = client.result(name, namespace, connect(server, context))
    print_status(ended, output)
    exit_with_status(ended)


@click.command("list")
@namespace_options
@output_option
def list_(namespace: str, server: str | None, context: str | None, output: str) -> None:
    """List the workflows of a namespace, the newest first."""
    from imagekiln.workflows.cli.status import status_table
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    print_result(client.list_workflows(namespace, connect(server, context)), output, status_table)


@click.command()
@workflow_options
@click.option("--shard", type=click.IntRange(0), help="Only what this shard's pods say.")
@click.option("-f", "--follow", is_flag=True, help="Stay, and print what comes.")
def logs(
    name: str,
    namespace: str,
    server: str | None,
    context: str | None,
    shard: int | None,
    follow: bool,
) -> None:
    """Print what a workflow's pods have logged."""
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import logs as pod_logs
    from imagekiln.workflows.client.connect import connect

    for line in pod_logs.logs(name, namespace, shard, connect(server, context), follow=follow):
        print_text(sanitize_line(line))


@click.command()
@workflow_options
def stop(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """End a workflow early. What it has made stays."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    client.stop(name, namespace, connect(server, context))
    print_text(f"{name} is stopping. `imagekiln resubmit {name}` goes on from there.")


@click.command()
@workflow_options
@output_option
def resubmit(
    name: str, namespace: str, server: str | None, context: str | None, output: str
) -> None:
    """Run a workflow that has ended again: what is there stays, what is missing is made."""
    from imagekiln.workflows.cli.status import print_status
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    print_status(client.resubmit(name, namespace, connect(server, context)), output)


WORKFLOW_COMMANDS = (
    submit,
    watch,
    wait,
    result,
    list_,
    logs,
    stop,
    resubmit,
    apply,
    schedule,
    suspend,
    resume,
    backfill,
)
