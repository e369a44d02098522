"""What a worker process and the process that started it tell each other."""

from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.errors import (
    BadInput,
    BudgetSpent,
    Incomplete,
    KilnError,
    Missing,
    NotInstalled,
    TryAgain,
)

FAILURES: dict[str, type[KilnError]] = {
    error.__name__: error
    for error in (NotInstalled, Missing, BadInput, BudgetSpent, Incomplete, TryAgain, KilnError)
}
ImageState = Literal["existing", "drawn", "committed"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first message to a worker: its run, and whether it checks the model's files itself."""

    run: str
    checks_weights: bool


@dataclass(frozen=True, slots=True)
class WeightsVerified:
    """The model's files are the planned ones: a worker that waited for this may draw."""


@dataclass(frozen=True, slots=True)
class EndAfterPart:
    """The worker is to end after the part that it is at."""


@dataclass(frozen=True, slots=True)
class Images:
    """So many more images are on disk already, drawn or committed."""

    state: ImageState
    images: int


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """Nothing of the worker's unit is missing any more."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker ends with a failure that has a sentence, of the class of this name."""

    error_class: str
    sentences: tuple[str, ...]

    @classmethod
    def of(cls, error: KilnError) -> "WorkerFailed":
        """The message for a failure, also for one of a class that only the worker knows."""
        name = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
        return cls(name, tuple(map(str, error.args)))

    def to_error(self) -> KilnError:
        """The failure as it can be raised in the other process."""
        return FAILURES[self.error_class](*self.sentences)


@dataclass(frozen=True, slots=True)
class WorkerCrashed:
    """The worker ends with an error that nobody expected."""

    traceback: str
