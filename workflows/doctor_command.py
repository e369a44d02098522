"""The command that looks at a cluster before a job is sent there."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from imagekiln.workflows.options import connection_options, job_options, output_option

if TYPE_CHECKING:
    from imagekiln.workflows.doctor.check import DoctorCheck

WRONG_EXIT_CODE = 2
STATUS_WIDTH = 9


@click.command()
@job_options
@connection_options
@output_option
def doctor(job: str, settings: tuple[str, ...], server: str | None, context: str | None, output: str) -> None:
    """Say of each prerequisite of a cluster whether this job has it, and what to do where it has not.

    Goes by kubeconfig; changes nothing but for a probe that it writes to the job's output, and removes.
    """
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows import access
    from imagekiln.workflows.connection import ApiConnection
    from imagekiln.workflows.doctor import diagnosis
    from imagekiln.workflows.show import print_result

    wanted = read_job(job, settings)
    named = server or (None if context else access.server_from_environment())
    argo = ApiConnection(access.argo_server_access(named)) if named else None
    checks = diagnosis.diagnose(wanted, ApiConnection(access.kubernetes_access(context)), argo)
    found = diagnosis.collect_diagnosis(wanted, _print_checks(checks) if output == "text" else checks)
    print_result(found, output, lambda _: _count_statuses(found.checks))
    if not found.healthy:
        click.get_current_context().exit(WRONG_EXIT_CODE)


def _print_checks(checks: Iterable["DoctorCheck"]) -> Iterator["DoctorCheck"]:
    """Print each check as it is made: some take a while."""
    from imagekiln.steps.visible import sanitize_line
    from imagekiln.workflows.say import print_text

    for each in checks:
        print_text(f"{each.verdict:<{STATUS_WIDTH}}{each.name}: {sanitize_line(each.says)}")
        if each.remedy:
            print_text(f"{'':<{STATUS_WIDTH}}-> {sanitize_line(each.remedy)}")
        yield each


def _count_statuses(checks: Iterable["DoctorCheck"]) -> str:
    verdicts = [each.verdict for each in checks]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in ("ok", "wrong", "unknown")) + "."


CLUSTER_COMMANDS = (doctor,)
