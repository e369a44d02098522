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
    schedule_options,
)

DAY = click.DateTime(["%Y-%m-%d"])


@cloup.command(
    epilog=examples('imagekiln schedule nightly.yaml --cron "30 1 * * *" --timezone Europe/Berlin')
)
@job_options
@cloup.option(
    "--cron",
    required=True,
    help='Minute, hour, day, month and weekday, such as "30 1 * * *".',
)
@cloup.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the schedule and of {date}.",
)
@connection_options
def schedule(
    job: str,
    settings: tuple[str, ...],
    cron: str,
    timezone: str,
    server: str | None,
    context: str | None,
) -> None:
    """Create or update a schedule of the job (a CronWorkflow)."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_note, print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect
    from imagekiln.workflows.client.next_commands import next_command
    from imagekiln.workflows.templates.cron import check_cron
    from imagekiln.workflows.templates.workflow import require_reachable_paths

    # Mistakes in the job come first, whether or not the cluster can be reached.
    scheduled_job = read_job(job, settings)
    require_reachable_paths(scheduled_job)
    check_cron(cron)
    argo = connect(server, context)
    name = client.schedule(scheduled_job, cron, timezone, argo, report=print_note)
    suspension = next_command("suspend", name, scheduled_job.cluster.namespace)
    start = client.find_next_start([cron], timezone)
    due = f", due next at {start}" if start else ""
    print_text(f"Applied CronWorkflow {name}{due}. {suspension} suspends it.")


@cloup.command(epilog=examples("imagekiln schedules", "imagekiln schedules -n images"))
@namespace_options
@format_option
def schedules(namespace: str, server: str | None, context: str | None, output_format: str) -> None:
    """List the schedules of a namespace."""
    from imagekiln.workflows.cli.status import nothing_listed, schedule_table
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    statuses = client.list_schedules(namespace, connect(server, context))
    nothing = nothing_listed("schedules", namespace)
    print_result(statuses, output_format, lambda statuses: schedule_table(statuses) or nothing)


@cloup.command(epilog=examples("imagekiln suspend nightly"))
@schedule_options
def suspend(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Suspend a schedule."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect
    from imagekiln.workflows.client.next_commands import next_command

    client.suspend(name, namespace, connect(server, context))
    print_text(f"{name} is suspended. {next_command('resume', name, namespace)} resumes it.")


@cloup.command(epilog=examples("imagekiln resume nightly"))
@schedule_options
def resume(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Resume a suspended schedule."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    client.resume(name, namespace, connect(server, context))
    print_text(f"{name} is resumed.")


@cloup.command(epilog=examples("imagekiln unschedule nightly"))
@schedule_options
def unschedule(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Delete a schedule; the workflows that it started go on."""
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    client.unschedule(name, namespace, connect(server, context))
    print_text(f"{name} is deleted.")


@cloup.command(
    epilog=examples(
        "imagekiln backfill nightly.yaml --from 2026-11-01 --to 2026-11-07",
        "imagekiln backfill nightly.yaml --from 2026-11-01 --to 2026-11-07 --retry",
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
    from imagekiln.workflows.cli.status import night_table
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.client.connect import connect

    client.require_day_order(first.date(), last.date())
    scheduled_job = read_job(job, settings)
    argo = connect(server, context)
    nights = client.backfill_nights(scheduled_job, first.date(), last.date(), argo, retry=retry)
    statuses = [night.status for night in nights if night.status is not None]
    print_result(statuses, output_format, lambda _: night_table(nights))
