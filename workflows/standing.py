"""How a workflow's status is printed, and what exit code it stands for."""

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta

import click

from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.visible import in_line
from imagekiln.workflows.say import say
from imagekiln.workflows.show import show
from imagekiln.workflows.status import Failure, Status

MOST_FAILURES = 10
MOST_SIGNS = 300  # of what a pod waits for


def show_status(status: Status, output: str) -> None:
    """Print a status, as text or as JSON."""
    show(status, output, text)


def watch_status(stream: Iterable[Status], output: str) -> None:
    """Print what changes, on a terminal in one line; in the end how it ended. Leave with its exit code."""
    before = ""
    for now in stream:
        line = standing(now)
        if now.ended:
            _wipe(before, output)
            show_status(now, output)
            leave(now)
        elif line != before:
            _wipe(before, output)
            say(line, err=output == "json", nl=not sys.stdout.isatty())
            before = line


def leave(status: Status) -> None:
    """End the command as the workflow has ended: 0, or 2 where its input was refused, else 3."""
    if status.phase != "Succeeded":
        refused = any(failure.exit_code == BadInput.exit_code for failure in status.failures)
        click.get_current_context().exit(BadInput.exit_code if refused else Incomplete.exit_code)


def text(status: Status) -> str:
    """A status in full: where it stands, where the dataset is, and what failed."""
    lines = [standing(status)]
    if status.run:
        lines.append(f"Dataset: {in_line(status.run)}")
    if status.message and not status.failures:
        lines.append(in_line(status.message))
    lines += [_failure(each) for each in status.failures[:MOST_FAILURES]]
    if (more := len(status.failures) - MOST_FAILURES) > 0:
        lines.append(f"... and {more} more")
    return "\n".join(lines)


def standing(status: Status) -> str:
    """A status in a line."""
    pods, parts = status.pods, [f"{status.namespace}/{status.name}: {status.phase}"]
    if status.images is not None:
        counts = {"running": pods.running, "waiting": pods.waiting, "done": pods.done, "failed": pods.failed}
        parts.append("pods " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
        parts.append(f"{status.made:,} of {status.images:,} images")
    if status.rate is not None and not status.ended:
        parts.append(f"{status.rate:.2f} a second")
    if status.seconds_left and not status.ended:
        parts.append(f"{timedelta(seconds=round(status.seconds_left))} left")
    if status.waits and not status.ended:
        parts.append(f"waiting, {in_line(status.waits)[:MOST_SIGNS]}")
    return "; ".join(part for part in parts if part != "pods ")


def table(found: Sequence[Status]) -> str:
    """Workflows, a line each."""
    return "\n".join(map(standing, found)) or "No workflows."


def _failure(failure: Failure) -> str:
    where = failure.step if failure.shard is None else f"{failure.step} of shard {failure.shard}"
    tries = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
    return f"{where} failed{tries}: {in_line(failure.message)}"


def _wipe(line: str, output: str) -> None:
    if line and output == "text" and sys.stdout.isatty():
        click.echo("\r" + " " * len(line) + "\r", nl=False)  # ours: back to the start of the line
