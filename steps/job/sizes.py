"""How many images make a shard, a part and a batch."""

from typing import Annotated

from pydantic import Field, model_validator

from imagekiln.steps.job.fields import Location, Number, PositiveInteger, Settings

DEFAULT_BATCH_IMAGES = 8
DEFAULT_PART_IMAGES = 64
MAX_SHARD_IMAGES = 100_000  # a shard's rows are held in memory


class ShardSettings(Settings):
    """The work of one pod: a number of images, or minutes."""

    images: Annotated[PositiveInteger, Field(le=MAX_SHARD_IMAGES)] | None = None
    minutes: Number | None = Field(default=None, gt=0)
    seconds_per_image: Number | None = Field(
        default=None,
        gt=0,
        description="The time of one image of the default size and steps on one GPU.",
    )

    @model_validator(mode="after")
    def _require_one_size(self) -> "ShardSettings":
        if self.images is not None and self.minutes is not None:
            raise ValueError("has both shard.images and shard.minutes; remove one of them")
        return self


class PartSettings(Settings):
    """The images that one commit writes: a minute or two of work."""

    images: Annotated[PositiveInteger, Field(le=10_000)] | None = Field(
        default=None,
        description=(
            f"Where absent, {DEFAULT_PART_IMAGES}, or fewer of a model that is known to be slow."
        ),
    )


class BatchSettings(Settings):
    """The images that one call of the denoiser draws: a number, or as `tune` measured."""

    images: Annotated[PositiveInteger, Field(le=1024)] | None = Field(
        default=None, description=f"Where absent, as tuned, or else {DEFAULT_BATCH_IMAGES}."
    )
    tuning: Location | None = Field(
        default=None, description="The file that `imagekiln tune` wrote: a path or URI."
    )
