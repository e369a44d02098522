"""The command that looks at a cluster before a job is sent there."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from imagekiln.workflows.cli.options import connection_options, job_options, output_option

if TYPE_CHECKING:
    from imagekiln.workflows.doctor.check import DoctorCheck


@click.command()
@job_options
@click.option(
    "--cron",
    "schedules",
    multiple=True,
    metavar="CRON",
    help='Run it on a schedule, such as "30 1 * * *".',
)
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the schedule and of {date}.",
)
@click.option("--event", is_flag=True, help="Run what is posted to Argo's server.")
def render(
    job: str, settings: tuple[str, ...], schedules: tuple[str, ...], timezone: str, event: bool
) -> None:
    """Print what runs the job on a cluster, as YAML for kubectl apply."""
    from imagekiln.steps.job.dates import parse_time_zone
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.templates.render import render_manifests as rendered

    parse_time_zone(timezone)
    print_text(rendered(read_job(job, settings), schedules, timezone, event=event), nl=False)


@click.command()
@click.argument("run", metavar="RUN")
def fetch(run: str) -> None:
    """Bring the files of a planned run's model into this machine's cache."""
    from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models as fetch_model
    from imagekiln.workflows.cli.terminal import print_text

    print_text(fetch_model(run))


@click.command()
def outcome() -> None:
    """Say how a workflow ended: its exit handler."""
    import os

    from imagekiln.workflows.cli.terminal import print_text
    from imagekiln.workflows.pod import outcome as outcomes

    ended = outcomes.outcome_from_environment(os.environ)
    print_text(outcomes.describe_outcome(ended))
    if webhook := os.environ.get("IMAGEKILN_WEBHOOK"):
        outcomes.post_outcome(ended, webhook.strip())


WRONG_EXIT_CODE = 2
STATUS_WIDTH = 9


@click.command()
@job_options
@connection_options
@output_option
def doctor(
    job: str, settings: tuple[str, ...], server: str | None, context: str | None, output: str
) -> None:
    """Say of each prerequisite of a cluster whether this job has it, and what to do where it has not.

    Goes by kubeconfig; changes nothing but for a probe that it writes to the job's output, and removes.
    """
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.client import access
    from imagekiln.workflows.client.http import ApiConnection
    from imagekiln.workflows.doctor import diagnosis

    wanted = read_job(job, settings)
    named = server or (None if context else access.server_from_environment())
    argo = ApiConnection(access.argo_server_access(named)) if named else None
    checks = diagnosis.diagnose(wanted, ApiConnection(access.kubernetes_access(context)), argo)
    found = diagnosis.collect_diagnosis(
        wanted, _print_checks(checks) if output == "text" else checks
    )
    print_result(found, output, lambda _: _count_statuses(found.checks))
    if not found.healthy:
        click.get_current_context().exit(WRONG_EXIT_CODE)


def _print_checks(checks: Iterable["DoctorCheck"]) -> Iterator["DoctorCheck"]:
    """Print each check as it is made: some take a while."""
    from imagekiln.steps.runtime.sanitize import sanitize_line
    from imagekiln.workflows.cli.terminal import print_text

    for each in checks:
        print_text(f"{each.verdict:<{STATUS_WIDTH}}{each.name}: {sanitize_line(each.says)}")
        if each.remedy:
            print_text(f"{'':<{STATUS_WIDTH}}-> {sanitize_line(each.remedy)}")
        yield each


def _count_statuses(checks: Iterable["DoctorCheck"]) -> str:
    verdicts = [each.verdict for each in checks]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in ("ok", "wrong", "unknown")) + "."


CLUSTER_COMMANDS = (render, fetch, outcome, doctor)
