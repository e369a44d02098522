"""Commands for a job that a cluster runs again and again."""

from datetime import datetime

import click
import cloup

from imagekiln.workflows.cli.options import (
    connection_options,
    examples,
    format_option,
    job_options,
    namespace_options,
    object_options,
)

DAY = click.DateTime(["%Y-%m-%d"])


@cloup.group()
def schedule() -> None:
    """Run a job again and again: create, list, pause, backfill."""


@schedule.command(
    epilog=examples(
        'imagekiln schedule create nightly.yaml --cron "30 1 * * *" --timezone Europe/Berlin'
    )
)
@job_options
@cloup.option(
    "--cron",
    "crons",
    required=True,
    multiple=True,
    metavar="CRON",
    help='Minute, hour, day, month and weekday, such as "30 1 * * *"; repeatable.',
)
@cloup.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the schedule and of {date}.",
)
@connection_options
def create(
    job: str,
    settings: tuple[str, ...],
    crons: tuple[str, ...],
    timezone: str,
    server: str | None,
    context: str | None,
) -> None:
    """Create or update a schedule of the job (a CronWorkflow)."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.steps.job.user_checks import describe_pod_entries
    from imagekiln.workflows.cli.terminal import print_note, print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect, next_command
    from imagekiln.workflows.templates.cron import check_cron
    from imagekiln.workflows.templates.workflow import require_reachable_paths

    # Mistakes in the job come first, whether or not the cluster can be reached.
    scheduled_job = read_job(job, settings)
    require_reachable_paths(scheduled_job)
    for cron in crons:
        check_cron(cron)
    argo = connect(server, context)
    name = client.create(scheduled_job, crons, timezone, argo, report=print_note)
    pausing = next_command("schedule pause", name, scheduled_job.cluster.namespace)
    start = client.find_next_start(crons, timezone)
    due = f", due next at {start}" if start else ""
    print_text(f"Applied CronWorkflow {name}{due}. {pausing} pauses it.")
    if note := describe_pod_entries(scheduled_job):
        print_note(note)


@schedule.command(
    "list", epilog=examples("imagekiln schedule list", "imagekiln schedule list -n images")
)
@namespace_options
@format_option
def list_(namespace: str, server: str | None, context: str | None, output_format: str) -> None:
    """List the schedules of a namespace."""
    from imagekiln.workflows.cli.status import format_list, schedule_line
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    statuses = client.list_schedules(namespace, connect(server, context))
    lines = map(schedule_line, statuses)
    print_result(statuses, output_format, lambda _: format_list("schedules", namespace, lines))


@schedule.command(epilog=examples("imagekiln schedule pause imagekiln-nightly"))
@object_options
def pause(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Pause a schedule."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect, next_command

    client.pause(name, namespace, connect(server, context))
    print_text(f"{name} is paused. {next_command('schedule resume', name, namespace)} resumes it.")


@schedule.command(epilog=examples("imagekiln schedule resume imagekiln-nightly"))
@object_options
def resume(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Resume a paused schedule."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    client.resume(name, namespace, connect(server, context))
    print_text(f"{name} is resumed.")


@schedule.command(epilog=examples("imagekiln schedule delete imagekiln-nightly"))
@object_options
def delete(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Delete a schedule; the workflows that it started go on."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    client.delete(name, namespace, connect(server, context))
    print_text(f"{name} is deleted.")


@schedule.command(
    epilog=examples(
        "imagekiln schedule backfill nightly.yaml --from 2026-11-01 --to 2026-11-07",
        "imagekiln schedule backfill nightly.yaml --from 2026-11-01 --to 2026-11-07 --retry",
    )
)
@job_options
@cloup.option("--from", "first", type=DAY, required=True, help="The first day.")
@cloup.option("--to", "last", type=DAY, required=True, help="The last day, included.")
@cloup.option(
    "--retry",
    is_flag=True,
    help="Generate only the failed, blank and missing images of those runs again.",
)
@format_option
@connection_options
def backfill(
    job: str,
    settings: tuple[str, ...],
    first: datetime,
    last: datetime,
    retry: bool,
    output_format: str,
    server: str | None,
    context: str | None,
) -> None:
    """Submit the job for past days of its schedule."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.status import status_line
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    client.require_day_order(first.date(), last.date())
    scheduled_job = read_job(job, settings)
    argo = connect(server, context)
    runs = client.backfill(scheduled_job, first.date(), last.date(), argo, retry=retry)
    lines = [f"{run.day}: {status_line(run.status)}" for run in runs]
    print_result([run.status for run in runs], output_format, lambda _: "\n".join(lines))
