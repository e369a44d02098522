"""The calls of `imagekiln` that the pages show."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile

from tests import pages

SEPARATORS = ("|", "&&", ";")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def commands(text: str) -> Iterator[list[str]]:
    """The words of every call of `imagekiln` in the lines of a shell script."""
    for line in text.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            command = list(takewhile(lambda word: word not in SEPARATORS, words))
            words = words[len(command) + 1 :]
            while command and ASSIGNMENT.fullmatch(command[0]):
                command.pop(0)
            if command[:1] == ["imagekiln"]:
                yield list(takewhile(lambda word: word != ">", command[1:]))


def shown_commands() -> list[list[str]]:
    """Those of the pages' shell blocks, without repetitions."""
    unique = {tuple(words): words for text in pages.blocks("sh") for words in commands(text)}
    return [words for words in unique.values() if words]
