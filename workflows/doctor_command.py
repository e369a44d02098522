"""The command that looks at a cluster before a job is sent there."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from imagekiln.workflows.options import job_options, output_option, reach_options

if TYPE_CHECKING:
    from imagekiln.workflows.doctor.check import Check

WRONG = 2
WIDTH = 9


@click.command()
@job_options
@reach_options
@output_option
def doctor(job: str, settings: tuple[str, ...], server: str | None, context: str | None, output: str) -> None:
    """Say of each prerequisite of a cluster whether this job has it, and what to do where it has not.

    Goes by kubeconfig; changes nothing but for a probe that it writes to the job's output, and removes.
    """
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows import access
    from imagekiln.workflows.connection import Connection
    from imagekiln.workflows.doctor import diagnosis
    from imagekiln.workflows.show import show

    wanted = read_job(job, settings)
    named = server or (None if context else access.named_server())
    argo = Connection(access.argo_server(named)) if named else None
    checks = diagnosis.diagnose(wanted, Connection(access.kubernetes(context)), argo)
    found = diagnosis.diagnosis(wanted, _told(checks) if output == "text" else checks)
    show(found, output, lambda _: _sum(found.checks))
    if not found.healthy:
        click.get_current_context().exit(WRONG)


def _told(checks: Iterable["Check"]) -> Iterator["Check"]:
    """Print each check as it is made: some take a while."""
    from imagekiln.steps.visible import in_line
    from imagekiln.workflows.say import say

    for each in checks:
        say(f"{each.verdict:<{WIDTH}}{each.name}: {in_line(each.says)}")
        if each.remedy:
            say(f"{'':<{WIDTH}}-> {in_line(each.remedy)}")
        yield each


def _sum(checks: Iterable["Check"]) -> str:
    verdicts = [each.verdict for each in checks]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in ("ok", "wrong", "unknown")) + "."


COMMANDS = (doctor,)
