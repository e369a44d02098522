"""What a job refuses: inputs, shares of failures, and costs."""

from pydantic import Field

from imagekiln.steps.job.fields import Number, PositiveInteger, Settings, Share


class JobLimits(Settings):
    """Which inputs are rejected, and how many rejected rows or failed images are too many."""

    prompt_chars: PositiveInteger = 4000
    pixels: PositiveInteger = Field(
        default=4096 * 4096, description="The most pixels that an image may have."
    )
    picture_bytes: PositiveInteger = Field(
        default=32 * 2**20, le=2**30, description="The most bytes that an input image may have."
    )
    # Pillow itself opens none above twice its MAX_IMAGE_PIXELS.
    picture_pixels: PositiveInteger = Field(
        default=8192 * 8192,
        le=178_956_970,
        description="The most pixels that an input image may have.",
    )
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
