"""The ways a step can fail. Each has an exit code, and a sentence: where, what, what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ClassVar, ParamSpec, TypeVar

from imagekiln.steps.runtime.sanitize import redact_urls, sanitize_line

MAX_LINE_CHARS = 200
MAX_NAME_CHARS = 80
MAX_SENTENCE_CHARS = 2000
P = ParamSpec("P")
T = TypeVar("T")


class KilnError(Exception):
    """A failure that is explained to the user: each argument is one sentence, shown on one line.

    Whatever a sentence quotes, it stays one line of bounded length, without control characters or
    credentials in URLs. Of a longer one, the middle is left out, and what to do is at its end: so
    it is of the traceback that PyTorch makes the sentence of an error in a worker.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """The sentences, safe to print on a terminal or in a log."""
        return "\n".join(_safe_sentence(str(sentence)) for sentence in self.args)

    def _render_traceback_(self) -> list[str]:
        """Show the message alone in IPython: a traceback says nothing more."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(KilnError):
    """The user's input, settings or permissions are wrong; trying again is useless."""

    exit_code = 2


class Missing(BadInput):
    """An object, file or bucket that was named does not exist."""


class StorageRefused(BadInput):
    """A store refuses requests as they are. What it holds is unknown, not wrong."""


class NotInstalled(BadInput):
    """A library that the request needs is not installed."""


class Incomplete(KilnError):
    """The run lacks images, or more of them failed than the job allows."""

    exit_code = 3


class BudgetSpent(Incomplete):
    """The run has spent its budget. Argo does not retry it; with a larger budget, it resumes."""


class TryAgain(KilnError):
    """Nothing is wrong with the job: storage, disk, device or time ran out."""

    exit_code = 75


def version_error(where: str, version: int, known_version: int) -> BadInput:
    """The error for a plan that an Imagekiln with another format has written."""
    return BadInput(
        f"{where}: has version {version}, and this Imagekiln reads {known_version}. "
        "Use the Imagekiln that wrote it, or make it anew under another name."
    )


def explain_failures(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function that users call raise its failures without the errors behind them.

    Their tracebacks would fill screens before the sentence that explains them.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except KilnError as error:
            raise error.with_traceback(None) from None

    return call


@contextmanager
def explained_by(explain: Callable[[Exception], KilnError | None]) -> Iterator[None]:
    """Raise what explains an error inside the block, or the error itself where nothing does."""
    try:
        yield
    except KilnError:
        raise
    except Exception as error:
        if explained := explain(error):
            raise explained from error
        raise


@contextmanager
def in_setting(setting: str) -> Iterator[None]:
    """Begin the sentences of failures inside with the setting at fault, such as passes.detail.

    What they name of that setting is then below it.
    """
    try:
        yield
    except KilnError as error:
        error.args = tuple(f"{setting}: {sentence}" for sentence in error.args)
        raise


def _safe_sentence(text: str) -> str:
    if len(text) <= MAX_SENTENCE_CHARS:
        return sanitize_line(redact_urls(text))
    # A URL that is cut is none that can be redacted; and not all of a text without end is searched.
    searched = 2 * MAX_SENTENCE_CHARS
    head = redact_urls(text[:searched])
    tail = redact_urls(text[-searched:].partition(" ")[2])
    half = MAX_SENTENCE_CHARS // 2
    omitted = len(text) - 2 * half
    return sanitize_line(f"{head[:half]}… {omitted:,} characters …{tail[-half:]}")


def first_line(message: str) -> str:
    """The first line of a message, cut to the length that a sentence has room for."""
    lines = message.splitlines()
    return lines[0][:MAX_LINE_CHARS] if lines else ""


def cut_name(name: str) -> str:
    """A name or type from a file of somebody's, cut to what a sentence has room for."""
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."
