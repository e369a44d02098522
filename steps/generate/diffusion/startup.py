"""What a process begins before it imports PyTorch, so that it is done beside the imports."""

from dataclasses import dataclass
from typing import Self

from imagekiln.steps.models.weights_check import WeightsCheck
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.start_times import StartClock


@dataclass(frozen=True, slots=True)
class Startup:
    """The check of the model's files, which has begun, and the clock of the start.

    Closed where the model is loaded, or is not needed after all.
    """

    weights: WeightsCheck
    clock: StartClock

    @classmethod
    def begin(cls, plan: Plan, clock: StartClock | None = None) -> Self:
        """Begin to hash the files of the plan's model."""
        return cls(WeightsCheck(plan.job.model, plan.model.digest), clock or StartClock())

    def __enter__(self) -> Self:
        """Return the startup itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what is still being read."""
        self.weights.close()
