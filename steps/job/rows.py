"""Settings of prompt rows: the names of their columns, and the values of empty cells."""

from pydantic import Field

from imagekiln.steps.job.columns import IMAGES_PER_ROW, MAX_SEED, Sampler
from imagekiln.steps.job.fields import (
    Guidance,
    Integer,
    NonEmptyText,
    Number,
    PositiveInteger,
    Settings,
    Share,
    StepCount,
    is_unset,
)


class ColumnNames(Settings):
    """Names of the prompt columns in the input. A column that is absent is null in every row.

    A name of None leaves the column unread, even if the input has it.
    """

    # Derived run ids are hashes of all settings, including these names. A new field needs an
    # `exclude_if` for its default to keep them stable.

    prompt: NonEmptyText = "prompt"
    id: NonEmptyText | None = "id"
    negative_prompt: NonEmptyText | None = "negative_prompt"
    seed: NonEmptyText | None = "seed"
    width: NonEmptyText | None = "width"
    height: NonEmptyText | None = "height"
    steps: NonEmptyText | None = "steps"
    guidance: NonEmptyText | None = "guidance"
    sampler: NonEmptyText | None = "sampler"
    images: NonEmptyText | None = "images"
    loras: NonEmptyText | None = "loras"
    strength: NonEmptyText | None = "strength"
    source_image: NonEmptyText | None = "source_image"
    mask_image: NonEmptyText | None = "mask_image"
    control_image: NonEmptyText | None = "control_image"
    reference_images: NonEmptyText | None = "reference_images"
    guidance_rescale: NonEmptyText | None = Field(
        default="guidance_rescale", exclude_if="guidance_rescale".__eq__
    )


class RowDefaults(Settings):
    """Defaults for empty columns of a prompt row."""

    steps: StepCount | None = Field(default=None, description="If absent, the model's own number.")
    guidance: Guidance | None = Field(
        default=None, description="If absent, the model's own number."
    )
    width: PositiveInteger | None = Field(
        default=None, description="Pixels; if absent, the model's own size."
    )
    height: PositiveInteger | None = Field(
        default=None, description="Pixels; if absent, the model's own size."
    )
    negative_prompt: str = ""
    sampler: Sampler = "default"
    strength: Number = Field(
        default=0.8,
        gt=0,
        le=1,
        description="How much of a source image is redrawn, from nothing to all of it.",
    )
    images_per_prompt: Integer = Field(
        default=1, ge=IMAGES_PER_ROW.lowest, le=IMAGES_PER_ROW.highest
    )
    seed: Integer = Field(default=0, ge=0, le=MAX_SEED)
    loras: str = Field(
        default="", description="LoRAs and their weights, such as style:0.8, detail:0.5."
    )
    guidance_rescale: Share | None = Field(
        default=None,
        exclude_if=is_unset,
        description="How far guidance keeps the contrast of the image without it.",
    )
