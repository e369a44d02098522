"""The only way to a terminal: nothing that is said can move its cursor, forge a line or turn one around."""

import click

from imagekiln.steps.visible import in_json, in_lines


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print sentences, whose line feeds are ours; texts of the user's go through `in_line` before they are put in."""
    click.echo(in_lines(text), err=err, nl=nl)


def say_json(text: str) -> None:
    """Print JSON that means the same to every program."""
    click.echo(in_json(text))
