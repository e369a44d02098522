"""The calls of `imagekiln` that the pages show."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click

from imagekiln.workflows.cli.main import main
from tests import pages

SEPARATORS = ("|", "&&", ";")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every call of `imagekiln` in the lines of a shell script."""
    for line in text.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            command = list(takewhile(lambda word: word not in SEPARATORS, words))
            words = words[len(command) + 1 :]
            while command and ASSIGNMENT.fullmatch(command[0]):
                command.pop(0)
            if command[:1] == ["imagekiln"]:
                yield list(takewhile(lambda word: word != ">", command[1:]))


def shown_commands(page: Path) -> list[list[str]]:
    """Return the calls in a page's shell blocks, without repetitions."""
    unique = {tuple(words): words for text in pages.blocks("sh", page) for words in commands(text)}
    return [words for words in unique.values() if words]


def find_command(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """Return the command that the words call, perhaps of a group, and the words after its name."""
    command: click.Command | None = main
    rest = words
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command, rest = command.commands.get(rest[0]), rest[1:]
    return command, rest
