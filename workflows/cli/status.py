"""Output of a workflow's status, and the exit code for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import click

from imagekiln.steps.errors import BadInput, Incomplete, TryAgain
from imagekiln.steps.runtime.figures import format_money, format_number
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.steps.runtime.signals import Stopped
from imagekiln.workflows.cli.terminal import (
    is_json,
    print_failure,
    print_note,
    print_result,
    print_text,
)
from imagekiln.workflows.cli.text import format_images, format_rows
from imagekiln.workflows.client import client
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import next_command
from imagekiln.workflows.client.pods import StepFailure
from imagekiln.workflows.client.schedules import ScheduleStatus
from imagekiln.workflows.client.status import STARTING, UNFIT_CAUSES, StepWait, WorkflowStatus

REPLACE_LINE = "\x1b[1A\x1b[2K"  # up and clear; click omits it unless on a terminal
MAX_FAILURES = 10
MAX_WAITS = 2  # in a line
FIT_REMEDY = "`imagekiln doctor JOB` says whether any node can"
MAX_REASON_CHARS = 300  # of the reason why a pod waits


def follow(name: str, namespace: str, argo: ArgoApi, *, quiet: bool = False) -> None:
    """Print each change of a workflow, unless `quiet`, and its result. Exit with its code."""
    previous = ""
    with following(name, namespace):
        for status in client.watch(name, namespace, argo, report=print_note):
            line = status_line(status)
            if status.ended:
                print_result(status, status_text)
                exit_with_status(status)
            elif line != previous and not quiet:
                if previous:
                    click.echo(REPLACE_LINE, nl=False, err=is_json())
                print_text(line, err=is_json())
                previous = line


@contextmanager
def following(name: str, namespace: str) -> Iterator[None]:
    """On interruption, end a command that only follows a workflow. The workflow continues."""
    try:
        yield
    except Stopped:
        watch = next_command("watch", name, namespace)
        stop = next_command("stop", name, namespace)
        sentence = f"{name} goes on: {watch} shows it, {stop} ends it."
        print_failure(sentence, TryAgain.exit_code)
        click.get_current_context().exit(TryAgain.exit_code)


def exit_with_status(status: WorkflowStatus) -> None:
    """Exit with the workflow's code: 0, 2 if its input was rejected, 75 while it runs, else 3."""
    exit_code = Incomplete.exit_code
    if status.phase == "Succeeded":
        exit_code = 0
    elif not status.ended:
        exit_code = TryAgain.exit_code
    elif any(failure.exit_code == BadInput.exit_code for failure in status.failures):
        exit_code = BadInput.exit_code
    click.get_current_context().exit(exit_code)


def status_text(status: WorkflowStatus) -> str:
    """Format a status in full: summary line, dataset, failures, and their cause last."""
    lines = [status_line(status)]
    if status.run:
        lines.append(f"Dataset: {status.run}")
    if any(status.device_seconds.values()):
        lines.append(f"Took:    {_spent_text(status)}")
    lines += map(_failure_line, status.failures[:MAX_FAILURES])
    omitted = len(status.failures) - MAX_FAILURES
    if omitted > 0:
        lines.append(f"... and {omitted} more")
    lines += [f"Warning: {failure.step}: {failure.reason}" for failure in status.warnings]
    if status.cause:
        lines.append(f"Cause: {status.cause}")
    return "\n".join(map(sanitize_line, lines))


def _spent_text(status: WorkflowStatus) -> str:
    """Format the device-hours of a run, in total and by use, and the cost if it is known."""
    hours = {use: seconds / 3600 for use, seconds in status.device_seconds.items()}
    uses = ", ".join(f"{use} {format_number(amount)}" for use, amount in hours.items() if amount)
    text = f"{format_number(sum(hours.values()))} device-hours ({uses})"
    if status.cost is not None:
        text += f", cost {format_money(status.cost)}"
    return text


def _failure_line(failure: StepFailure) -> str:
    shard = "" if failure.shard is None else f" of shard {failure.shard}"
    attempts = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
    return f"{failure.step}{shard} failed{attempts}: {failure.message}"


def status_line(status: WorkflowStatus) -> str:
    """Format a status in one line."""
    parts = [f"{status.namespace}/{status.name}: {status.phase}"]
    if status.stage:
        parts.append(status.stage)
    if status.images is not None:
        states = {
            name: getattr(status.pods, name) for name in ("running", "waiting", "done", "failed")
        }
        if pods := ", ".join(f"{count} {state}" for state, count in states.items() if count):
            parts.append(f"pods {pods}")
        images = f"{status.made:,} of {status.images:,} images"
        is_counted = status.ended and status.statuses
        parts.append(format_images(status.statuses) if is_counted else images)
    if not status.ended:
        parts += _progress_parts(status)
    return sanitize_line("; ".join(parts))


def _progress_parts(status: WorkflowStatus) -> list[str]:
    """Return the speed of a workflow, its remaining time, and the reasons why pods wait."""
    parts = []
    if status.rate is not None and status.stage == "generate":
        parts.append(f"{status.rate:.2f} images/s")
        if status.seconds_left:
            parts.append(f"{timedelta(seconds=round(status.seconds_left))} left")
    parts += [_wait_text(wait, status) for wait in status.waits[:MAX_WAITS]]
    return parts


def _wait_text(wait: StepWait, status: WorkflowStatus) -> str:
    """Format the cause of a wait; unless other pods run, with the message of Argo or Kubernetes."""
    pods = f" ({wait.pods} pods)" if wait.pods > 1 else ""
    text = f"{wait.step}{pods} waits: {wait.cause}"
    if not status.pods.running:
        if wait.cause in UNFIT_CAUSES:
            text += f", {FIT_REMEDY}"
        if wait.message not in ("", wait.cause) and wait.cause != STARTING:
            text += f" ({wait.message})"
    return text[:MAX_REASON_CHARS]


def format_workflows(statuses: Sequence[WorkflowStatus], namespace: str) -> str:
    """Format the workflows of a namespace, a line each."""
    return "\n".join(map(status_line, statuses)) or _say_none("workflows", namespace)


def format_schedules(schedules: Sequence[ScheduleStatus], namespace: str) -> str:
    """Format the schedules of a namespace as a table."""
    rows = [
        {
            "schedule": f"{each.namespace}/{each.name}",
            "cron": " and ".join(each.crons),
            "timezone": each.timezone,
            "last start": each.last_started or "never",
            "next start": "paused" if each.suspended else each.next_start or "",
            "running": ", ".join(each.running),
        }
        for each in schedules
    ]
    return format_rows(rows) if rows else _say_none("schedules", namespace)


def _say_none(noun: str, namespace: str) -> str:
    return f"No {noun} in namespace {namespace}. `-n NAMESPACE` looks into another."
