"""The ways a step can fail. Each carries one sentence: where, what, what to do."""

from typing import ClassVar

from imagekiln.steps.runtime.sanitize import sanitize_line

MAX_LINE_CHARS = 200


class KilnError(Exception):
    """A failure that the user is told about in one sentence, or in several: an argument each, and a line each.

    Whatever text a sentence quotes, it stays one line, and no control character is in it.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """The sentences as a terminal or a log may show them."""
        return "\n".join(sanitize_line(str(sentence)) for sentence in self.args)


class BadInput(KilnError):
    """The user's input, settings or permissions are wrong; trying again is useless."""

    exit_code = 2


class Missing(BadInput):
    """An object, file or bucket that was named is not there."""


class NotInstalled(BadInput):
    """What was asked for needs a library that is not there."""


class Incomplete(KilnError):
    """The run lacks images, or more of them failed than the job allows."""

    exit_code = 3


class TryAgain(KilnError):
    """Nothing is wrong with the job: storage, disk, device or time ran out."""

    exit_code = 75


def first_line(said: str) -> str:
    """As much of a long message as a sentence has room for; empty where nothing was said."""
    return next(iter(said.splitlines()), "")[:MAX_LINE_CHARS]
