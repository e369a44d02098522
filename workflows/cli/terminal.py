"""Printing, in one way that no control character passes."""

import click

from imagekiln.steps.runtime.sanitize import sanitize_json, sanitize_lines


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print sentences of ours, line feeds included.

    Text of the user's goes through `sanitize_line` before it is put into them.
    """
    click.echo(sanitize_lines(text), err=err, nl=nl)


def print_note(text: str) -> None:
    """Print a sentence about the work in progress, next to the result and not in it."""
    print_text(text, err=True)


def print_json(text: str) -> None:
    """Print JSON that means the same to every program."""
    click.echo(sanitize_json(text))
