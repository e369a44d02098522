"""Commands that only follow a workflow: it goes on when they are interrupted.

Imports little, so that this holds while such a command still loads its libraries.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runtime.signals import Stopped
from imagekiln.workflows.cli.terminal import print_failure, print_text
from imagekiln.workflows.client.next_commands import next_command


@contextmanager
def following(verb: str, name: str, namespace: str) -> Iterator[None]:
    """End the command as any that is interrupted, and say that the workflow is not."""
    try:
        yield
    except Stopped:
        watch = next_command("watch", name, namespace)
        stop = next_command("stop", name, namespace)
        sentence = f"No longer {verb}. {name} goes on: {watch} shows it, {stop} ends it."
        print_failure(_below_status(sentence), TryAgain.exit_code)
        click.get_current_context().exit(TryAgain.exit_code)


def print_silence(sentence: str) -> None:
    """Print that the cluster does not answer, below the status on a terminal."""
    print_text(_below_status(sentence), err=True)


def _below_status(sentence: str) -> str:
    """The sentence on a line of its own: on a terminal, the status may end without a line feed."""
    return f"\n{sentence}" if sys.stdout.isatty() else sentence
