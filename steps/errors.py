"""Errors of steps. Each has an exit code and a message with the place, problem and remedy."""

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
    """Base class of errors with a message for the user. Each argument is one line of it.

    Lines are safe to print: they have bounded length, without control characters or credentials in
    URLs. The middle of a long line is omitted, because the remedy is at the end. So is the error in
    a PyTorch worker's traceback.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Format the message, safe to print on a terminal or in a log."""
        return "\n".join(_safe_sentence(str(sentence)) for sentence in self.args)

    def _render_traceback_(self) -> list[str]:
        """Show only the message in IPython, since a traceback adds nothing."""
        return [f"{type(self).__name__}: {self}"]


class BadInput(KilnError):
    """The user's input, settings or permissions are wrong. Retrying does not help."""

    exit_code = 2


class Missing(BadInput):
    """A named object, file or bucket does not exist."""


class StorageRefused(BadInput):
    """A store refuses requests of this form. Its contents are unknown, not invalid."""


class NotInstalled(BadInput):
    """A required library is not installed."""


class Incomplete(KilnError):
    """The run lacks images, or more of them failed than the job allows."""

    exit_code = 3


class BudgetSpent(Incomplete):
    """The run has spent its budget. Argo does not retry it; it resumes with a larger budget."""


class TryAgain(KilnError):
    """A temporary failure: storage, disk, device or time ran out. Retrying may help."""

    exit_code = 75


def version_error(where: str, version: int, known_version: int) -> BadInput:
    """Return the error for an object that an Imagekiln with another format version wrote."""
    return BadInput(
        f"{where}: has version {version}, and this Imagekiln reads {known_version}. "
        "Use the Imagekiln that wrote it, or make it anew under another name."
    )


def explain_failures(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function to raise its errors without tracebacks and causes.

    Tracebacks would fill screens before the message that explains the error.
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
    """Replace an error inside the block with its explanation, if `explain` returns one."""
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
    """Prefix messages of errors inside the block with a setting, such as `passes.detail`.

    Names in these messages are then relative to that setting.
    """
    try:
        yield
    except KilnError as error:
        error.args = tuple(f"{setting}: {sentence}" for sentence in error.args)
        raise


def _safe_sentence(text: str) -> str:
    if len(text) <= MAX_SENTENCE_CHARS:
        return sanitize_line(redact_urls(text))
    # Redact URLs before cutting, in bounded parts of the message. A cut URL cannot be redacted.
    searched = 2 * MAX_SENTENCE_CHARS
    head = redact_urls(text[:searched])
    tail = redact_urls(text[-searched:].partition(" ")[2])
    half = MAX_SENTENCE_CHARS // 2
    omitted = len(text) - 2 * half
    return sanitize_line(f"{head[:half]}… {omitted:,} characters …{tail[-half:]}")


def first_line(message: str) -> str:
    """Return the first line of a message, truncated to MAX_LINE_CHARS."""
    lines = message.splitlines()
    return lines[0][:MAX_LINE_CHARS] if lines else ""


def cut_name(name: str) -> str:
    """Truncate a name or type from an input file to MAX_NAME_CHARS, for messages."""
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."
