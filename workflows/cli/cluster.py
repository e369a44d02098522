"""Commands for a job on a cluster: check the cluster, submit the job, follow or schedule it."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import cloup

from imagekiln.workflows.cli.options import (
    Cluster,
    JobArguments,
    cluster_options,
    dated_job_options,
    examples,
    format_option,
    job_options,
    namespace_options,
    object_options,
    retry_option,
    schedule_timezone_option,
)
from imagekiln.workflows.cli.terminal import is_json, print_note, print_result, print_text
from imagekiln.workflows.client.connect import next_command

if TYPE_CHECKING:
    from imagekiln.workflows.doctor.check import DoctorCheck

UNHEALTHY_EXIT_CODE = 2
CLUSTER_DOCS = "https://github.com/imagekiln/imagekiln/blob/main/docs/cluster.md#your-own-overlay"
VERDICT_WIDTH = 9
DAY = click.DateTime(["%Y-%m-%d"])


@cloup.command(
    epilog=examples("imagekiln manifests cluster", "imagekiln manifests cluster --monitoring")
)
@cloup.argument(
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A new folder for the kustomize base and its overlays.",
)
@cloup.option(
    "--monitoring",
    is_flag=True,
    help="Include metrics, alerts and dashboards, for the Prometheus Operator and Grafana.",
)
def manifests(folder: Path, *, monitoring: bool) -> None:
    """Write the namespace's Kubernetes objects, for kubectl apply -k."""
    from imagekiln.workflows.cli.starter import write_manifests

    write_manifests(folder, monitoring=monitoring)
    base = folder / "base"
    overlays = folder / "overlays"
    print_text(
        f"Wrote {folder}. Copy {base / 'secrets.example.yaml'} to where no repository has it, fill "
        "it in, set `namespace:` in it, and apply it. Your own endpoint, bucket and quota go into "
        f"an overlay of yours: {CLUSTER_DOCS}. "
        f"Next: kubectl apply -k {overlays / 'whole-cluster'}, or your overlay"
    )


@cloup.command(
    epilog=examples("imagekiln doctor job.yaml", "imagekiln doctor job.yaml --context staging")
)
@dated_job_options
@format_option
@cluster_options
def doctor(request: JobArguments, cluster: Cluster) -> None:
    """Check that the cluster has everything the job needs.

    Prints each prerequisite as ok, wrong or unknown, with the remedy. Uses kubeconfig, and changes
    nothing but probe objects, which it writes to the job's output and exports, and removes. Exits
    with 2 if anything is wrong, and with 75 if the cluster does not answer.
    """
    from imagekiln.steps.errors import BadInput, KilnError
    from imagekiln.steps.job.dates import fill_date
    from imagekiln.workflows.client import connect
    from imagekiln.workflows.client.http import ApiConnection
    from imagekiln.workflows.doctor import diagnosis

    job = fill_date(request.read(), request.date, request.timezone)
    url = connect.find_server(cluster.server, cluster.context)
    argo = ApiConnection(connect.argo_server_access(url)) if url else None
    kubernetes: ApiConnection | KilnError
    try:
        kubernetes = ApiConnection(connect.kubernetes_access(cluster.context))
    except BadInput as error:  # without a cluster, check what this machine can
        kubernetes = error
    checks = diagnosis.diagnose(job, kubernetes, argo)
    if not is_json():
        checks = _print_checks(checks)
    result = diagnosis.collect_diagnosis(job, checks)
    if is_json():
        print_result(result)
    if not result.healthy:
        click.get_current_context().exit(UNHEALTHY_EXIT_CODE)


def _print_checks(checks: "Iterable[DoctorCheck]") -> "Iterator[DoctorCheck]":
    """Print each check as soon as it is made, since some are slow."""
    from imagekiln.steps.runtime.sanitize import sanitize_line

    for check in checks:
        print_text(f"{check.verdict:<{VERDICT_WIDTH}}{check.name}: {sanitize_line(check.says)}")
        if check.remedy:
            print_text(f"{'':<{VERDICT_WIDTH}}-> {sanitize_line(check.remedy)}")
        yield check


@cloup.command(
    epilog=examples(
        "imagekiln submit job.yaml",
        "imagekiln submit job.yaml --watch",
        "imagekiln submit nightly.yaml --date 2026-11-21 --retry",
    )
)
@dated_job_options
@retry_option
@cloup.option(
    "--watch", "watched", is_flag=True, help="Follow the workflow until it ends, as `watch` does."
)
@format_option
@cluster_options
def submit(request: JobArguments, cluster: Cluster, *, retry: bool, watched: bool) -> None:
    """Submit a job as a workflow; submitted twice, it runs once."""
    from imagekiln.workflows.cli.status import follow, status_text
    from imagekiln.workflows.client import client
    from imagekiln.workflows.templates.workflow import require_reachable_paths

    # Report mistakes in the job first, even if the cluster is unreachable.
    job = request.read()
    require_reachable_paths(job)
    client.require_readable_date(job, request.date, request.timezone)
    argo = cluster.connect()
    status = client.submit(job, request.date, request.timezone, argo, retry=retry)
    print_result(status, status_text)
    if watched:
        follow(status.name, status.namespace, argo)
    elif not status.ended:
        print_note(f"{next_command('watch', status.name, status.namespace)} follows it.")


@cloup.command(
    epilog=examples(
        "imagekiln watch shapes-1a2b3c4d5e6f -n imagekiln",
        "imagekiln watch shapes-1a2b3c4d5e6f --quiet --format json",
    )
)
@object_options
@cloup.option("--quiet", is_flag=True, help="Print nothing until the workflow has ended.")
@cloup.option("--once", is_flag=True, help="Print how it stands, with exit code 75 while it runs.")
@format_option
def watch(name: str, namespace: str, cluster: Cluster, *, quiet: bool, once: bool) -> None:
    """Follow a workflow's progress until it ends.

    Shows pods, images, rate and remaining time. The exit code is that of the workflow: 0, 2 if its
    input was rejected, else 3. It is 75 if the cluster does not answer at the start, or later for
    10 minutes; the workflow goes on.
    """
    from imagekiln.workflows.cli.status import exit_with_status, follow, status_text
    from imagekiln.workflows.client import client

    argo = cluster.connect()
    if not once:
        follow(name, namespace, argo, quiet=quiet)
    status = client.get_status(name, namespace, argo)
    print_result(status, status_text)
    exit_with_status(status)


@cloup.command(
    epilog=examples("imagekiln workflows", "imagekiln workflows -n images --format json")
)
@namespace_options
@format_option
def workflows(namespace: str, cluster: Cluster) -> None:
    """List the workflows of a namespace, newest first."""
    from imagekiln.workflows.cli.status import format_workflows
    from imagekiln.workflows.client import client

    statuses = client.workflows(namespace, cluster.connect())
    print_result(statuses, lambda statuses: format_workflows(statuses, namespace))


@cloup.command(epilog=examples("imagekiln logs shapes-1a2b3c4d5e6f --shard 3 --follow"))
@object_options
@cloup.option("--shard", type=click.IntRange(0), help="Only the pods of this shard.")
@cloup.option("-f", "--follow", is_flag=True, help="Keep printing new lines until the end.")
def logs(name: str, namespace: str, cluster: Cluster, shard: int | None, *, follow: bool) -> None:
    """Print the logs of a workflow's pods."""
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.workflows.cli.status import following
    from imagekiln.workflows.client import logs as pod_logs

    argo = cluster.connect()
    with following(name, namespace):
        for line in pod_logs.logs(name, namespace, shard, argo, follow=follow):
            print_text(sanitize_line(line))


@cloup.command(epilog=examples("imagekiln stop shapes-1a2b3c4d5e6f"))
@object_options
def stop(name: str, namespace: str, cluster: Cluster) -> None:
    """Stop a workflow early; the images it has committed are kept.

    A second time, it is terminated: at once, and without the notification of its end.
    """
    from imagekiln.workflows.client import client

    resume = f"{next_command('resubmit', name, namespace)} resumes it."
    consequence = {
        "stopping": f"is stopping. {resume}",
        "terminated": (
            "was stopping already, and is terminated: its exit handler does not run, so nobody is "
            f"notified of its end. What is committed is kept. {resume}"
        ),
        "ended": f"had ended before. {resume}",
        "succeeded": "has succeeded: there is nothing to stop or to resume.",
    }[client.stop(name, namespace, cluster.connect())]
    print_text(f"{name} {consequence}")


@cloup.command(epilog=examples("imagekiln resubmit shapes-1a2b3c4d5e6f"))
@object_options
@format_option
def resubmit(name: str, namespace: str, cluster: Cluster) -> None:
    """Run an ended workflow again, to generate what is missing."""
    from imagekiln.workflows.cli.status import status_text
    from imagekiln.workflows.client import client

    print_result(client.resubmit(name, namespace, cluster.connect()), status_text)


@cloup.command(epilog=examples("imagekiln apply job.yaml"))
@job_options
@cluster_options
def apply(request: JobArguments, cluster: Cluster) -> None:
    """Create or update the WorkflowTemplate of the job's profile."""
    from imagekiln.workflows.client import client

    print_text(f"Applied WorkflowTemplate {client.apply(request.read(), cluster.connect())}.")


@cloup.command(
    epilog=examples(
        "imagekiln render job.yaml > workflow.yaml",
        'imagekiln render job.yaml --cron "30 1 * * *" --timezone Europe/Berlin',
    )
)
@job_options
@cloup.option(
    "--cron",
    "schedules",
    multiple=True,
    metavar="CRON",
    help='Run it on a schedule, such as "30 1 * * *"; repeatable.',
)
@schedule_timezone_option
@cloup.option(
    "--event",
    is_flag=True,
    help="Also render the event binding; combines with --cron.",
)
def render(
    request: JobArguments, schedules: tuple[str, ...], timezone: str, *, event: bool
) -> None:
    """Print the job's Kubernetes objects as YAML for kubectl apply."""
    from imagekiln.steps.job.dates import parse_time_zone
    from imagekiln.workflows.templates.workflow import render_manifests

    parse_time_zone(timezone)
    print_text(render_manifests(request.read(), schedules, timezone, event=event), nl=False)


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
    from imagekiln.workflows.client import schedules as client
    from imagekiln.workflows.templates.cron import check_cron
    from imagekiln.workflows.templates.workflow import require_reachable_paths

    # Report mistakes in the job first, even if the cluster is unreachable.
    job = request.read()
    require_reachable_paths(job)
    for cron in crons:
        check_cron(cron)
    name = client.create(job, crons, timezone, cluster.connect())
    pausing = next_command("schedule pause", name, job.cluster.namespace)
    start = client.find_next_start(crons, timezone)
    due = f", due next at {start}" if start else ""
    print_text(f"Applied CronWorkflow {name}{due}. {pausing} pauses it.")


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
