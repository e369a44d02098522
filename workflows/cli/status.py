"""How a workflow's status is printed, and which exit code it stands for."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import click

from imagekiln.steps.errors import BadInput, Incomplete, TryAgain
from imagekiln.steps.runtime.figures import format_money, format_number
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.steps.runtime.signals import Stopped
from imagekiln.workflows.cli.terminal import print_failure, print_text
from imagekiln.workflows.cli.text import format_images, print_result
from imagekiln.workflows.client import client
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import next_command
from imagekiln.workflows.client.schedules import ScheduleStatus
from imagekiln.workflows.client.status import PodCounts, WorkflowStatus
from imagekiln.workflows.client.steps import StepFailure
from imagekiln.workflows.client.waits import STARTING, UNFIT_CAUSES, StepWait

MAX_FAILURES = 10
MAX_WAITS = 2  # in a line
FIT_REMEDY = "`imagekiln doctor JOB` says whether any node can"
MAX_REASON_CHARS = 300  # of what a pod waits for


def print_status(status: WorkflowStatus, output_format: str) -> None:
    """Print a status, as text or as JSON."""
    print_result(status, output_format, status_text)


def follow(
    name: str, namespace: str, argo: ArgoApi, output_format: str, *, quiet: bool = False
) -> None:
    """Print each change of a workflow unless `quiet`, then how it ended. Exit with its code."""
    with following(name, namespace):
        statuses = client.watch(name, namespace, argo, report=_print_silence)
        _print_until_ended(statuses, output_format, quiet=quiet)


@contextmanager
def following(name: str, namespace: str) -> Iterator[None]:
    """End a command that only follows a workflow, once interrupted; the workflow goes on."""
    try:
        yield
    except Stopped:
        watch = next_command("watch", name, namespace)
        stop = next_command("stop", name, namespace)
        sentence = f"{name} goes on: {watch} shows it, {stop} ends it."
        print_failure(_below_status(sentence), TryAgain.exit_code)
        click.get_current_context().exit(TryAgain.exit_code)


def _print_silence(sentence: str) -> None:
    """Print that the cluster does not answer, below the status on a terminal."""
    print_text(_below_status(sentence), err=True)


def _below_status(sentence: str) -> str:
    """The sentence on a line of its own: on a terminal, the status may end without a line feed."""
    return f"\n{sentence}" if sys.stdout.isatty() else sentence


def _print_until_ended(
    statuses: Iterable[WorkflowStatus], output_format: str, *, quiet: bool
) -> None:
    """On a terminal, a line that fits takes the place of the one before."""
    previous = ""
    replaceable = ""
    for status in statuses:
        line = status_line(status)
        if status.ended:
            _clear_line(replaceable, output_format)
            print_status(status, output_format)
            exit_with_status(status)
        elif line != previous and not quiet:
            _clear_line(replaceable, output_format)
            replaceable = line if _fits_terminal(line) else ""
            print_text(line, err=output_format == "json", nl=not replaceable)
            previous = line


def exit_with_status(status: WorkflowStatus) -> None:
    """End the command as the workflow ended: 0, 2 if its input was rejected, else 3.

    While the workflow runs, with 75.
    """
    if status.phase == "Succeeded":
        return
    if not status.ended:
        click.get_current_context().exit(TryAgain.exit_code)
    is_rejected = any(failure.exit_code == BadInput.exit_code for failure in status.failures)
    exit_code = BadInput.exit_code if is_rejected else Incomplete.exit_code
    click.get_current_context().exit(exit_code)


def status_text(status: WorkflowStatus) -> str:
    """A status in full: its line, where the dataset is, what failed, and the cause of it last."""
    lines = [status_line(status)]
    if status.run:
        lines.append(f"Dataset: {sanitize_line(status.run)}")
    if any(status.device_seconds.values()):
        lines.append(f"Took:    {_spent_text(status)}")
    lines += map(_failure_line, status.failures[:MAX_FAILURES])
    omitted = len(status.failures) - MAX_FAILURES
    if omitted > 0:
        lines.append(f"... and {omitted} more")
    lines += map(_warning_line, status.warnings)
    if status.cause:
        lines.append(f"Cause: {sanitize_line(status.cause)}")
    return "\n".join(lines)


def _spent_text(status: WorkflowStatus) -> str:
    """What a run took, in all and by use, and what it cost if that is known."""
    hours = {use: seconds / 3600 for use, seconds in status.device_seconds.items()}
    uses = ", ".join(f"{use} {format_number(amount)}" for use, amount in hours.items() if amount)
    text = f"{format_number(sum(hours.values()))} device-hours ({uses})"
    if status.cost is not None:
        text += f", cost {format_money(status.cost)}"
    return text


def status_line(status: WorkflowStatus) -> str:
    """A status in a line."""
    parts = [f"{status.namespace}/{status.name}: {status.phase}"]
    if status.stage:
        parts.append(status.stage)
    if status.images is not None:
        pods = _pods_text(status.pods)
        if pods:
            parts.append(f"pods {pods}")
        parts.append(_images_text(status, status.images))
    if not status.ended:
        parts += _progress_parts(status)
    return sanitize_line("; ".join(parts))


def _images_text(status: WorkflowStatus, planned: int) -> str:
    """The images that pods have made so far; once they were counted, what the run has."""
    if status.ended and status.statuses:
        return format_images(status.statuses)
    return f"{status.made:,} of {planned:,} images"


def _pods_text(pods: PodCounts) -> str:
    counts = {
        "running": pods.running,
        "waiting": pods.waiting,
        "done": pods.done,
        "failed": pods.failed,
    }
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _progress_parts(status: WorkflowStatus) -> list[str]:
    """How fast a workflow generates, when that will end, and what its pods wait for."""
    parts = []
    if status.rate is not None and status.stage == "generate":
        parts.append(f"{status.rate:.2f} images/s")
        if status.seconds_left:
            parts.append(f"{timedelta(seconds=round(status.seconds_left))} left")
    parts += [_wait_text(wait, status) for wait in status.waits[:MAX_WAITS]]
    return parts


def _wait_text(wait: StepWait, status: WorkflowStatus) -> str:
    """What is waited for; unless other pods run, with what Argo or Kubernetes says of it."""
    pods = f" ({wait.pods} pods)" if wait.pods > 1 else ""
    text = f"{wait.step}{pods} waits: {wait.cause}"
    if not status.pods.running:
        if wait.cause in UNFIT_CAUSES:
            text += f", {FIT_REMEDY}"
        if wait.message not in ("", wait.cause) and wait.cause != STARTING:
            text += f" ({wait.message})"
    return text[:MAX_REASON_CHARS]


def format_list(noun: str, namespace: str, lines: Iterable[str]) -> str:
    """The lines; if there are none, a sentence on how to look into another namespace."""
    nothing = f"No {noun} in namespace {namespace}. `-n NAMESPACE` looks into another."
    return "\n".join(lines) or nothing


def schedule_line(schedule: ScheduleStatus) -> str:
    """A schedule in a line."""
    crons = " and ".join(schedule.crons)
    parts = [f"{schedule.namespace}/{schedule.name}: {crons} {schedule.timezone}"]
    if schedule.suspended:
        parts.append("paused")
    last = f"last started {schedule.last_started}" if schedule.last_started else "never started"
    parts.append(last)
    if schedule.next_start:
        parts.append(f"next start {schedule.next_start}")
    if schedule.running:
        parts.append(f"running: {', '.join(schedule.running)}")
    return sanitize_line("; ".join(parts))


def _failure_line(failure: StepFailure) -> str:
    step = failure.step
    if failure.shard is not None:
        step = f"{step} of shard {failure.shard}"
    attempts = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
    return sanitize_line(f"{step} failed{attempts}: {failure.message}")


def _warning_line(failure: StepFailure) -> str:
    return sanitize_line(f"Warning: {failure.step}: {failure.reason}")


def _fits_terminal(line: str) -> bool:
    """Whether standard output is a terminal on which the line takes one row."""
    return sys.stdout.isatty() and len(line) < shutil.get_terminal_size().columns


def _clear_line(line: str, output_format: str) -> None:
    if line and output_format == "text" and sys.stdout.isatty():
        click.echo("\r" + " " * len(line) + "\r", nl=False)  # ours: back to the start of the line
