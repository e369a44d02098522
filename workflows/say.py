"""The only way to a terminal: nothing that is said can move its cursor, forge a line or turn one around."""

import click

from imagekiln.steps.visible import sanitize_json, sanitize_lines


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print sentences, whose line feeds are ours; texts of the user's go through `in_line` before they are put in."""
    click.echo(sanitize_lines(text), err=err, nl=nl)


def print_json(text: str) -> None:
    """Print JSON that means the same to every program."""
    click.echo(sanitize_json(text))
