"""The limits of a run: shares of failures, and costs."""

from pydantic import Field

from imagekiln.steps.job.fields import Number, Settings, Share


class JobLimits(Settings):
    """The shares of rejected rows and failed images that are too many."""

    rejected_share: Share = Field(
        default=0.01, description="Planning fails when a larger share of the rows is rejected."
    )
    failed_share: Share = Field(
        default=0.0, description="The run fails when a larger share of the images is not ok."
    )


class BudgetSettings(Settings):
    """What a run may cost, with all its retries. No plan contains it, so that it can be raised."""

    gpu_hours: Number | None = Field(
        default=None, gt=0, description="The most GPU-hours that the run may take."
    )
    cost: Number | None = Field(
        default=None, gt=0, description="The most that the run may cost; needs a price."
    )

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return self != BudgetSettings()
