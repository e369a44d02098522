"""Work that a process begins before it imports PyTorch, to run beside the imports."""

from imagekiln.steps.models.facts import WeightsCheck
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import StartClock


class Startup(WeightsCheck):
    """The check of the files of a plan's model, and the clock of the start.

    Closed once the model is loaded, or is not needed after all.
    """

    def __init__(self, plan: Plan, clock: StartClock | None = None) -> None:
        """Begin to hash the files of the plan's model."""
        super().__init__(plan.job.model, plan.model.digest)
        self.clock = clock or StartClock()
