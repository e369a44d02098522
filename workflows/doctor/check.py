"""The result of a check, and the decorator that makes a function a check."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Literal, ParamSpec

from imagekiln.steps.errors import BadInput

P = ParamSpec("P")
CheckVerdict = Literal["ok", "wrong", "unknown"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of a check, as doctor prints it. `remedy` is None if there is nothing to do."""

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


def ok(says: str, remedy: str | None = None) -> DoctorCheck:
    """The prerequisite is met."""
    return DoctorCheck("", "ok", says, remedy)


def wrong(says: str, remedy: str) -> DoctorCheck:
    """The job cannot run like this."""
    return DoctorCheck("", "wrong", says, remedy)


def unknown(says: str, remedy: str) -> DoctorCheck:
    """Neither this machine nor this user can tell."""
    return DoctorCheck("", "unknown", says, remedy)


def doctor_check(name: str) -> Callable[[Callable[P, DoctorCheck]], Callable[P, DoctorCheck]]:
    """Name the results of a check function. What the user may not read is unknown, never wrong."""

    def decorate(find: Callable[P, DoctorCheck]) -> Callable[P, DoctorCheck]:
        @wraps(find)
        def check(*args: P.args, **kwargs: P.kwargs) -> DoctorCheck:
            try:
                return replace(find(*args, **kwargs), name=name)
            except Unreadable as error:
                return DoctorCheck(name, "unknown", error.says, error.remedy)

        return check

    return decorate
