"""Settings of passes, which process each kept image before it is stored.

Passes run one after another. Passes that change pixels come first. Captions describe the stored
image and come last. All settings of a pass except its name are part of every image_id.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from imagekiln.steps.job.columns import Sampler
from imagekiln.steps.job.fields import (
    Guidance,
    HubReference,
    Integer,
    NonEmptyText,
    Number,
    PipelineSettings,
    Settings,
    StepCount,
    is_unset,
)
from imagekiln.steps.job.scores import RESERVED_NAMES, SCORE_NAME_PATTERN

MAX_PASSES = 8
MAX_SCALE = 8
DEFAULT_STRENGTH = 0.3
MAX_CAPTION_TOKENS = 500  # BLIP has 512 positions, including begin and end of a caption
# The generated size of an image, in runs with passes that may change its size.
DRAWN_SIZE_COLUMNS = ("drawn_width", "drawn_height")
PassName = Annotated[
    str,
    Field(
        pattern=f"^{SCORE_NAME_PATTERN}$",
        description="At most 40 lower-case letters, digits and underscores, a letter first.",
    ),
]


class UpscalePass(HubReference):
    """A pass that enlarges images with a transformers super-resolution model, by its own factor."""

    kind: Literal["upscale"] = "upscale"


class RefinePass(Settings):
    """A second diffusion pass: image-to-image, optionally at another size, or an edit."""

    kind: Literal["refine", "edit"] = "refine"
    prompt: NonEmptyText | None = Field(
        default=None,
        exclude_if=is_unset,
        description="How the pass edits the image, such as: make it winter. {prompt} stands for "
        "the row's prompt.",
    )
    strength: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=DEFAULT_STRENGTH,
        description="How much of the image is redrawn, from nothing to all of it.",
    )
    steps: StepCount | None = Field(
        default=None, description="If absent, the row's, or those of the pass's own model."
    )
    guidance: Guidance | None = Field(
        default=None, description="If absent, the row's, or that of the pass's own model."
    )
    sampler: Sampler | None = Field(
        default=None,
        exclude_if=is_unset,
        description="If absent, the row's.",
    )
    model: PipelineSettings | None = Field(
        default=None,
        exclude_if=is_unset,
        description="The diffusers pipeline that draws; if absent, the job's own.",
    )
    scale: Annotated[Number, Field(ge=1 / MAX_SCALE, le=MAX_SCALE)] | None = Field(
        default=None, description="Enlarges the image before it is drawn over."
    )

    @model_validator(mode="after")
    def _require_a_step(self) -> "RefinePass":
        if (self.kind == "edit") != (self.prompt is not None):
            raise ValueError("of the kind edit has a prompt, and no other has; add or remove it")
        if self.kind == "edit" and self.strength != DEFAULT_STRENGTH:
            raise ValueError("of the kind edit has no strength; remove it")
        if self.kind == "edit" and self.model is None:
            raise ValueError("edits, which takes a model that edits images; set its model")
        if self.steps is not None and int(self.steps * self.redrawn) < 1:
            raise ValueError(
                f"has strength {self.strength:g} and {self.steps} steps, which leaves nothing to "
                "draw; raise one of them"
            )
        return self

    @property
    def redrawn(self) -> float:
        """Return the share of the image that is drawn anew."""
        return 1.0 if self.kind == "edit" else self.strength


class CaptionPass(HubReference):
    """A pass that writes a column of captions, by a transformers image-to-text model."""

    kind: Literal["caption"] = "caption"
    max_tokens: Annotated[Integer, Field(ge=1, le=MAX_CAPTION_TOKENS)] = Field(
        default=64, description="The most tokens of a caption."
    )


AnyModelPass = UpscalePass | CaptionPass
AnyPass = Annotated[AnyModelPass | RefinePass, Field(discriminator="kind")]


def alters_pixels(settings: AnyPass) -> bool:
    """Return whether a pass changes the image, rather than adding a caption."""
    return not isinstance(settings, CaptionPass)


def caption_names(passes: Mapping[str, AnyPass]) -> tuple[str, ...]:
    """Return the names of caption passes, which are the names of their columns."""
    return tuple(name for name, settings in passes.items() if not alters_pixels(settings))


def check_passes(
    passes: Mapping[str, AnyPass], taken_names: Collection[str], taken_columns: Collection[str]
) -> None:
    """Raise ValueError if a pass has a reserved name, or a caption precedes other passes.

    `taken_names` are names of scores and gates, `taken_columns` names of carried columns.
    """
    reserved = {*RESERVED_NAMES, *taken_names, *taken_columns}
    earlier_caption = None
    for name, settings in passes.items():
        if name in reserved:
            raise ValueError(
                f"has passes.{name}, the name of a column, score, gate or status; rename the pass"
            )
        if not alters_pixels(settings):
            earlier_caption = name
        elif earlier_caption is not None:
            raise ValueError(
                f"has passes.{name} after the caption {earlier_caption}, and captions are of the "
                "image as it is stored; move captions to the end"
            )
