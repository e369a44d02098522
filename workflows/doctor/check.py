"""One prerequisite of a cluster: whether it is met, and what to do where it is not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Literal, ParamSpec

from imagekiln.steps.errors import BadInput

P = ParamSpec("P")
CheckStatus = Literal["ok", "wrong", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What looking at something gave. `remedy` is absent where there is nothing to do."""

    verdict: CheckStatus
    says: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A finding, by the name of the prerequisite."""

    name: str
    verdict: CheckStatus
    says: str
    remedy: str | None = None


class Unreadable(BadInput):
    """Something that may not be read, and what to ask for."""

    def __init__(self, says: str, remedy: str) -> None:
        """Take both as sentences."""
        super().__init__(f"{says} {remedy}")
        self.message, self.remedy = says, remedy


def ok(says: str, remedy: str | None = None) -> Finding:
    """Nothing is in the way; `remedy` says what might still be better."""
    return Finding("ok", says, remedy)


def wrong(says: str, remedy: str) -> Finding:
    """The job cannot run like this."""
    return Finding("wrong", says, remedy)


def unknown(says: str, remedy: str) -> Finding:
    """Something could not be looked at from here."""
    return Finding("unknown", says, remedy)


def doctor_check(name: str) -> Callable[[Callable[P, Finding]], Callable[P, DoctorCheck]]:
    """Give findings their name. What may not be read is unknown, and never wrong."""

    def named(look: Callable[P, Finding]) -> Callable[P, DoctorCheck]:
        @wraps(look)
        def checked(*given: P.args, **named: P.kwargs) -> DoctorCheck:
            try:
                found = look(*given, **named)
            except Unreadable as error:
                found = unknown(error.message, error.remedy)
            return DoctorCheck(name, found.verdict, found.says, found.remedy)

        return checked

    return named
