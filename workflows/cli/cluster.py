"""Commands for a job on a cluster: check the cluster, submit the job, follow its workflow."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, get_args

import click
import cloup

from imagekiln.workflows.cli.options import (
    connection_options,
    date_options,
    examples,
    format_option,
    job_options,
    namespace_options,
    object_options,
)
from imagekiln.workflows.doctor.check import CheckVerdict, DoctorCheck

UNHEALTHY_EXIT_CODE = 2
CLUSTER_DOCS = "https://github.com/imagekiln/imagekiln/blob/main/docs/cluster.md#your-own-overlay"
VERDICTS: Final[tuple[CheckVerdict, ...]] = get_args(CheckVerdict)
VERDICT_WIDTH = 9


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
    from imagekiln.workflows.cli.terminal import print_text

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
@job_options
@date_options
@format_option
@connection_options
def doctor(
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    output_format: str,
    server: str | None,
    context: str | None,
) -> None:
    """Check that the cluster has everything the job needs.

    Prints each prerequisite as ok, wrong or unknown, with the remedy. Uses kubeconfig, and changes
    nothing but probe objects, which it writes to the job's output and exports, and removes. Exits
    with 2 if anything is wrong, and with 75 if the cluster does not answer.
    """
    from imagekiln.steps.errors import BadInput, TryAgain
    from imagekiln.steps.job.dates import fill_date
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import access
    from imagekiln.workflows.client.http import ApiConnection
    from imagekiln.workflows.doctor import diagnosis

    submitted_job = fill_date(read_job(job, settings), date, timezone)
    url = server or (None if context else access.server_from_environment())
    argo = ApiConnection(access.argo_server_access(url)) if url else None
    try:
        kubernetes = ApiConnection(access.kubernetes_access(context))
        checks = diagnosis.diagnose(submitted_job, kubernetes, argo)
    except (BadInput, TryAgain) as error:  # for want of a cluster, what can be checked here
        checks = diagnosis.diagnose_without_cluster(submitted_job, error, argo)
    if output_format == "text":
        checks = _print_checks(checks)
    result = diagnosis.collect_diagnosis(submitted_job, checks)
    print_result(result, output_format, lambda result: _count_verdicts(result.checks))
    if not result.healthy:
        click.get_current_context().exit(UNHEALTHY_EXIT_CODE)


def _print_checks(checks: Iterable[DoctorCheck]) -> Iterator[DoctorCheck]:
    """Print each check as soon as it is made: some take a while."""
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.workflows.cli.terminal import print_text

    for check in checks:
        print_text(f"{check.verdict:<{VERDICT_WIDTH}}{check.name}: {sanitize_line(check.says)}")
        if check.remedy:
            print_text(f"{'':<{VERDICT_WIDTH}}-> {sanitize_line(check.remedy)}")
        yield check


def _count_verdicts(checks: Iterable[DoctorCheck]) -> str:
    verdicts = Counter(check.verdict for check in checks)
    counts = [f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS]
    return ", ".join(counts) + "."


@cloup.command(
    epilog=examples(
        "imagekiln submit job.yaml",
        "imagekiln submit job.yaml --watch",
        "imagekiln submit nightly.yaml --date 2026-11-21 --retry",
    )
)
@job_options
@date_options
@cloup.option(
    "--retry",
    is_flag=True,
    help="Generate only the failed, blank and missing images of the job's run again.",
)
@cloup.option(
    "--watch", "watched", is_flag=True, help="Follow the workflow until it ends, as `watch` does."
)
@format_option
@connection_options
def submit(
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    retry: bool,
    watched: bool,
    output_format: str,
    server: str | None,
    context: str | None,
) -> None:
    """Submit a job as a workflow; submitted twice, it runs once."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.steps.job.user_checks import describe_pod_entries
    from imagekiln.workflows.cli.status import follow, print_status
    from imagekiln.workflows.cli.terminal import print_note
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect, next_command
    from imagekiln.workflows.templates.workflow import require_reachable_paths

    # Mistakes in the job come first, whether or not the cluster can be reached.
    submitted_job = read_job(job, settings)
    require_reachable_paths(submitted_job)
    client.require_readable_date(submitted_job, date, timezone)
    argo = connect(server, context)
    status = client.submit(submitted_job, date, timezone, argo, retry=retry)
    print_status(status, output_format)
    if note := describe_pod_entries(submitted_job):
        print_note(note)
    if watched:
        follow(status.name, status.namespace, argo, output_format)
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
def watch(
    name: str,
    namespace: str,
    server: str | None,
    context: str | None,
    quiet: bool,
    once: bool,
    output_format: str,
) -> None:
    """Follow a workflow's progress until it ends.

    Shows pods, images, rate and remaining time. The exit code is that of the workflow: 0, 2 if its
    input was rejected, else 3. It is 75 if the cluster does not answer at the start, or later for
    10 minutes; the workflow goes on.
    """
    from imagekiln.workflows.cli.status import exit_with_status, follow, print_status
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    argo = connect(server, context)
    if once:
        status = client.get_status(name, namespace, argo)
        print_status(status, output_format)
        exit_with_status(status)
    else:
        follow(name, namespace, argo, output_format, quiet=quiet)


@cloup.command(
    epilog=examples("imagekiln workflows", "imagekiln workflows -n images --format json")
)
@namespace_options
@format_option
def workflows(namespace: str, server: str | None, context: str | None, output_format: str) -> None:
    """List the workflows of a namespace, newest first."""
    from imagekiln.workflows.cli.status import format_list, status_line
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    statuses = client.workflows(namespace, connect(server, context))
    lines = map(status_line, statuses)
    print_result(statuses, output_format, lambda _: format_list("workflows", namespace, lines))


@cloup.command(epilog=examples("imagekiln logs shapes-1a2b3c4d5e6f --shard 3 --follow"))
@object_options
@cloup.option("--shard", type=click.IntRange(0), help="Only the pods of this shard.")
@cloup.option("-f", "--follow", is_flag=True, help="Keep printing new lines until the end.")
def logs(
    name: str,
    namespace: str,
    server: str | None,
    context: str | None,
    shard: int | None,
    follow: bool,
) -> None:
    """Print the logs of a workflow's pods."""
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.workflows.cli.status import following
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import logs as pod_logs
    from imagekiln.workflows.client.connect import connect

    argo = connect(server, context)
    with following(name, namespace):
        for line in pod_logs.logs(name, namespace, shard, argo, follow=follow):
            print_text(sanitize_line(line))


@cloup.command(epilog=examples("imagekiln stop shapes-1a2b3c4d5e6f"))
@object_options
def stop(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """Stop a workflow early; the images it has committed are kept.

    A second time, it is terminated: at once, and without the notification of its end.
    """
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import stopping
    from imagekiln.workflows.client.connect import connect, next_command

    resume = f"{next_command('resubmit', name, namespace)} resumes it."
    consequence = {
        "stopping": f"is stopping. {resume}",
        "terminated": (
            "was stopping already, and is terminated: its exit handler does not run, so nobody is "
            f"notified of its end. What is committed is kept. {resume}"
        ),
        "ended": f"had ended before. {resume}",
        "succeeded": "has succeeded: there is nothing to stop or to resume.",
    }[stopping.stop(name, namespace, connect(server, context))]
    print_text(f"{name} {consequence}")


@cloup.command(epilog=examples("imagekiln resubmit shapes-1a2b3c4d5e6f"))
@object_options
@format_option
def resubmit(
    name: str, namespace: str, server: str | None, context: str | None, output_format: str
) -> None:
    """Run an ended workflow again, to generate what is missing."""
    from imagekiln.workflows.cli.status import print_status
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    print_status(client.resubmit(name, namespace, connect(server, context)), output_format)


@cloup.command(epilog=examples("imagekiln apply job.yaml"))
@job_options
@connection_options
def apply(job: str, settings: tuple[str, ...], server: str | None, context: str | None) -> None:
    """Create or update the WorkflowTemplate of the job's profile."""
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.client import client
    from imagekiln.workflows.client.connect import connect

    name = client.apply(read_job(job, settings), connect(server, context))
    print_text(f"Applied WorkflowTemplate {name}.")


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
@cloup.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the schedule and of {date}.",
)
@cloup.option(
    "--event",
    is_flag=True,
    help="Also render the event binding; combines with --cron.",
)
def render(
    job: str, settings: tuple[str, ...], schedules: tuple[str, ...], timezone: str, event: bool
) -> None:
    """Print the job's Kubernetes objects as YAML for kubectl apply."""
    from imagekiln.steps.job.dates import parse_time_zone
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_note, print_text
    from imagekiln.workflows.profiles.loader import load_profile
    from imagekiln.workflows.templates.render import render_manifests

    parse_time_zone(timezone)
    rendered_job = read_job(job, settings)
    manifests = render_manifests(rendered_job, schedules, timezone, event=event)
    print_text(manifests, nl=False)
    profile = load_profile(rendered_job.cluster.profile)
    images = (
        rendered_job.cluster.cpu_image or profile.steps.image,
        rendered_job.cluster.gpu_image or profile.generate.image,
    )
    if unregistered := [image for image in images if "/" not in image]:
        print_note(
            f"{' and '.join(unregistered)}: names without a registry, from which nodes cannot pull "
            "them. Push them to yours; cluster.gpu_image and cluster.cpu_image name them there."
        )
