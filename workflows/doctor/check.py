"""The result of a check, and the decorator that makes a function a check."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Literal, ParamSpec

from imagekiln.steps.errors import BadInput

P = ParamSpec("P")
CheckVerdict = Literal["ok", "wrong", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check function. `remedy` is None if there is nothing to do."""

    verdict: CheckVerdict
    says: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A finding under the name of its check, as doctor prints it."""

    name: str
    verdict: CheckVerdict
    says: str
    remedy: str | None = None


class Unreadable(BadInput):
    """The user has no right to read something. `remedy` says which right to ask for."""

    def __init__(self, says: str, remedy: str) -> None:
        """Take both as sentences."""
        super().__init__(f"{says} {remedy}")
        self.says = says
        self.remedy = remedy


def ok(says: str, remedy: str | None = None) -> Finding:
    """The prerequisite is met."""
    return Finding("ok", says, remedy)


def wrong(says: str, remedy: str) -> Finding:
    """The job cannot run like this."""
    return Finding("wrong", says, remedy)


def unknown(says: str, remedy: str) -> Finding:
    """Neither this machine nor this user can tell."""
    return Finding("unknown", says, remedy)


def doctor_check(name: str) -> Callable[[Callable[P, Finding]], Callable[P, DoctorCheck]]:
    """Name a check function's findings. What the user may not read is unknown, never wrong."""

    def decorate(find: Callable[P, Finding]) -> Callable[P, DoctorCheck]:
        @wraps(find)
        def check(*args: P.args, **kwargs: P.kwargs) -> DoctorCheck:
            try:
                finding = find(*args, **kwargs)
            except Unreadable as error:
                finding = unknown(error.says, error.remedy)
            return DoctorCheck(name, finding.verdict, finding.says, finding.remedy)

        return check

    return decorate
