"""Printing, in one way that no control character passes; in pods as lines of JSON."""

import click

from imagekiln.steps.runtime.machine import format_log_event, is_log_structured
from imagekiln.steps.runtime.sanitize import sanitize_json, sanitize_lines


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print sentences of ours, line feeds included.

    Text of the user's goes through `sanitize_line` before it is put into them.
    """
    if is_log_structured():
        print_event("note" if err else "result", message=text, err=err)
    else:
        click.echo(sanitize_lines(text), err=err, nl=nl)


def print_note(text: str) -> None:
    """Print a sentence about the work in progress, next to the result and not in it."""
    print_text(text, err=True)


def print_failure(text: str, exit_code: int) -> None:
    """Print why a command failed: its last line."""
    if is_log_structured():
        print_event("failure", message=text, exit_code=exit_code, err=True)
    else:
        print_note(text)


def print_event(name: str, *, err: bool = False, **fields: object) -> None:
    """Print a line of JSON for a log."""
    click.echo(sanitize_json(format_log_event(name, fields)), err=err)


def print_json(text: str) -> None:
    """Print JSON that means the same to every program."""
    click.echo(sanitize_json(text))
