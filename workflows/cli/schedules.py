"""Commands for a job that a cluster runs again and again."""

from datetime import datetime

import click
import cloup

from imagekiln.workflows.cli.options import (
    Cluster,
    JobArguments,
    cluster_options,
    examples,
    format_option,
    job_options,
    namespace_options,
    object_options,
    retry_option,
    schedule_timezone_option,
)
from imagekiln.workflows.cli.terminal import print_note, print_result, print_text
from imagekiln.workflows.client.connect import next_command

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
@schedule_timezone_option
@cluster_options
def create(request: JobArguments, crons: tuple[str, ...], timezone: str, cluster: Cluster) -> None:
    """Create or update a schedule of the job (a CronWorkflow)."""
    from imagekiln.steps.job.user_checks import describe_pod_entries
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.templates.cron import check_cron
    from imagekiln.workflows.templates.workflow import require_reachable_paths

    # Mistakes in the job come first, whether or not the cluster can be reached.
    job = request.read()
    require_reachable_paths(job)
    for cron in crons:
        check_cron(cron)
    name = client.create(job, crons, timezone, cluster.connect())
    pausing = next_command("schedule pause", name, job.cluster.namespace)
    start = client.find_next_start(crons, timezone)
    due = f", due next at {start}" if start else ""
    print_text(f"Applied CronWorkflow {name}{due}. {pausing} pauses it.")
    if note := describe_pod_entries(job):
        print_note(note)


@schedule.command(
    "list", epilog=examples("imagekiln schedule list", "imagekiln schedule list -n images")
)
@namespace_options
@format_option
def list_(namespace: str, cluster: Cluster) -> None:
    """List the schedules of a namespace."""
    from imagekiln.workflows.cli.status import format_schedules
    from imagekiln.workflows.client.schedules import list_schedules

    schedules = list_schedules(namespace, cluster.connect())
    print_result(schedules, lambda schedules: format_schedules(schedules, namespace))


@schedule.command(epilog=examples("imagekiln schedule pause imagekiln-nightly"))
@object_options
def pause(name: str, namespace: str, cluster: Cluster) -> None:
    """Pause a schedule."""
    from imagekiln.workflows.client import schedules as client

    client.pause(name, namespace, cluster.connect())
    print_text(f"{name} is paused. {next_command('schedule resume', name, namespace)} resumes it.")


@schedule.command(epilog=examples("imagekiln schedule resume imagekiln-nightly"))
@object_options
def resume(name: str, namespace: str, cluster: Cluster) -> None:
    """Resume a paused schedule."""
    from imagekiln.workflows.client import schedules as client

    client.resume(name, namespace, cluster.connect())
    print_text(f"{name} is resumed.")


@schedule.command(epilog=examples("imagekiln schedule delete imagekiln-nightly"))
@object_options
def delete(name: str, namespace: str, cluster: Cluster) -> None:
    """Delete a schedule; the workflows that it started go on."""
    from imagekiln.workflows.client import schedules as client

    client.delete(name, namespace, cluster.connect())
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
@retry_option
@format_option
@cluster_options
def backfill(
    request: JobArguments, first: datetime, last: datetime, cluster: Cluster, *, retry: bool
) -> None:
    """Submit the job for past days of its schedule."""
    from imagekiln.workflows.cli.status import status_line
    from imagekiln.workflows.client import schedules as client

    job = request.read()
    runs = client.backfill(job, first.date(), last.date(), cluster.connect(), retry=retry)
    lines = [f"{run.day}: {status_line(run.status)}" for run in runs]
    print_result([run.status for run in runs], lambda _: "\n".join(lines))
