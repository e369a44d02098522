"""How a workflow's status is printed, and what exit code it stands for."""

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta

import click

from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.workflows.cli.terminal import print_text
from imagekiln.workflows.cli.text import print_result
from imagekiln.workflows.client.status import StepFailure, WorkflowStatus

MAX_FAILURES = 10
MAX_REASON_CHARS = 300  # of what a pod waits for


def print_status(status: WorkflowStatus, output: str) -> None:
    """Print a status, as text or as JSON."""
    print_result(status, output, status_text)


def print_until_ended(stream: Iterable[WorkflowStatus], output: str) -> None:
    """Print what changes, on a terminal in one line; in the end how it ended. Leave with its exit code."""
    before = ""
    for now in stream:
        line = status_line(now)
        if now.ended:
            _clear_line(before, output)
            print_status(now, output)
            exit_with_status(now)
        elif line != before:
            _clear_line(before, output)
            print_text(line, err=output == "json", nl=not sys.stdout.isatty())
            before = line


def exit_with_status(status: WorkflowStatus) -> None:
    """End the command as the workflow has ended: 0, or 2 where its input was refused, else 3."""
    if status.phase != "Succeeded":
        refused = any(failure.exit_code == BadInput.exit_code for failure in status.failures)
        click.get_current_context().exit(BadInput.exit_code if refused else Incomplete.exit_code)


def status_text(status: WorkflowStatus) -> str:
    """A status in full: where it stands, where the dataset is, and what failed."""
    lines = [status_line(status)]
    if status.run:
        lines.append(f"Dataset: {sanitize_line(status.run)}")
    if status.message and not status.failures:
        lines.append(sanitize_line(status.message))
    lines += [_failure_line(each) for each in status.failures[:MAX_FAILURES]]
    if (more := len(status.failures) - MAX_FAILURES) > 0:
        lines.append(f"... and {more} more")
    return "\n".join(lines)


def status_line(status: WorkflowStatus) -> str:
    """A status in a line."""
    pods, parts = status.pods, [f"{status.namespace}/{status.name}: {status.phase}"]
    if status.images is not None:
        counts = {
            "running": pods.running,
            "waiting": pods.waiting,
            "done": pods.done,
            "failed": pods.failed,
        }
        parts.append(
            "pods " + ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        )
        parts.append(f"{status.made:,} of {status.images:,} images")
    if status.rate is not None and not status.ended:
        parts.append(f"{status.rate:.2f} a second")
    if status.seconds_left and not status.ended:
        parts.append(f"{timedelta(seconds=round(status.seconds_left))} left")
    if status.waits and not status.ended:
        parts.append(f"waiting, {sanitize_line(status.waits)[:MAX_REASON_CHARS]}")
    return "; ".join(part for part in parts if part != "pods ")


def status_table(found: Sequence[WorkflowStatus]) -> str:
    """Workflows, a line each."""
    return "\n".join(map(status_line, found)) or "No workflows."


def _failure_line(failure: StepFailure) -> str:
    where = failure.step if failure.shard is None else f"{failure.step} of shard {failure.shard}"
    tries = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
    return f"{where} failed{tries}: {sanitize_line(failure.message)}"


def _clear_line(line: str, output: str) -> None:
    if line and output == "text" and sys.stdout.isatty():
        click.echo("\r" + " " * len(line) + "\r", nl=False)  # ours: back to the start of the line
