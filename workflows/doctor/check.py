"""Result of a check, the input of checks, and the decorator for check functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Literal, ParamSpec, TypeVar, cast

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.placement import WeightSizes
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.cluster_view import ClusterView, Unreadable
from imagekiln.workflows.profiles.profile import Profile

P = ParamSpec("P")
Found = TypeVar("Found", bound="DoctorCheck | None")
CheckVerdict = Literal["ok", "wrong", "unknown"]
Weights = Sequence[WeightSizes] | KilnError  # of the models, or the error of reading them


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """Result of a check, as doctor prints it. `remedy` is None if there is nothing to do."""

    name: str
    verdict: CheckVerdict
    says: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """A job with its profile, and the cluster to check.

    `server` is Argo's server, if the job would be submitted to one.
    """

    job: Job
    profile: Profile
    view: ClusterView
    server: ApiConnection | None = None
    weights: Weights = ()


def ok(says: str) -> DoctorCheck:
    """Report that the prerequisite is met."""
    return DoctorCheck("", "ok", says)


def wrong(says: str, remedy: str) -> DoctorCheck:
    """Report that the job cannot run like this."""
    return DoctorCheck("", "wrong", says, remedy)


def unknown(says: str, remedy: str) -> DoctorCheck:
    """Report that neither this machine nor this user can tell."""
    return DoctorCheck("", "unknown", says, remedy)


def doctor_check(name: str) -> Callable[[Callable[P, Found]], Callable[P, Found]]:
    """Name the result of a check function, which returns None if there is nothing to check.

    If the user may not read an object, the result is unknown, not wrong.
    """

    def decorate(find: Callable[P, Found]) -> Callable[P, Found]:
        @wraps(find)
        def check(*args: P.args, **kwargs: P.kwargs) -> Found:
            try:
                finding = find(*args, **kwargs)
            except Unreadable as error:
                return cast("Found", DoctorCheck(name, "unknown", error.says, error.remedy))
            return finding if finding is None else cast("Found", replace(finding, name=name))

        return check

    return decorate


def split_remedy(error: KilnError) -> tuple[str, str]:
    """Split an error into the problem and the remedy, which may be empty."""
    says, separator, remedy = str(error).rpartition(". ")
    return (f"{says}.", remedy) if separator else (str(error), "")
