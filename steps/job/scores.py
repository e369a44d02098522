"""Settings of scores, which are computed for each generated image, and of best-of-n selection.

No image_id depends on scores, since they do not change pixels. The number of candidates only
determines how many images a prompt has, each with its own seed.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.config import JsonDict

from imagekiln.steps.job.columns import RESERVED_COLUMNS
from imagekiln.steps.job.fields import (
    HubReference,
    Integer,
    Location,
    NonEmptyText,
    Number,
    Settings,
    is_unset,
)
from imagekiln.steps.job.gates import (
    ENTRY_PATTERN,
    GATE_NAMES,
    STATUS_NAMES,
    Gate,
    require_own_function,
)

SCORE_NAME_PATTERN = r"[a-z][a-z0-9_]{0,39}"
RANK_COLUMN = "candidate_rank"
RESERVED_NAMES = {*RESERVED_COLUMNS, *GATE_NAMES, *STATUS_NAMES, RANK_COLUMN}
MAX_SCORES = 16
MAX_CANDIDATES = 16
KEEP_PATTERN = rf"best 1 of ([0-9]{{1,4}}) by ({SCORE_NAME_PATTERN})"
ScoreName = Annotated[
    str,
    Field(
        pattern=f"^{SCORE_NAME_PATTERN}$",
        description="The column: at most 40 lower-case letters, digits and underscores.",
    ),
]


def _allow_text(schema: JsonDict) -> None:
    """Let editors accept the short form of the group, a string."""
    group = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "pattern": f"^{KEEP_PATTERN}$"}, group]


class Score(Gate):
    """A score: a number for each image. Images out of bounds are marked."""

    min: Number | None = Field(default=None, description="Marks an image with a lower score.")
    max: Number | None = Field(default=None, description="Marks an image with a higher score.")

    @model_validator(mode="after")
    def _require_ordered_bounds(self) -> "Score":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"has min {self.min:g} and max {self.max:g}; exchange them")
        return self

    @property
    def criterion(self) -> str:
        """Description of the images that are marked."""
        clauses = ["no number"]
        if self.max is not None:
            clauses.insert(0, f"over {self.max:g}")
        if self.min is not None:
            clauses.insert(0, f"under {self.min:g}")
        return ", or ".join(clauses)

    def marks(self, value: float) -> bool:
        """Return whether an image with this score is marked."""
        is_low = self.min is not None and value < self.min
        is_high = self.max is not None and value > self.max
        return is_low or is_high


class ModelScore(Score, HubReference):
    """A score computed by a transformers model in safetensors files."""


class ClipScore(ModelScore):
    """CLIP score: 100 times the cosine similarity of a CLIP model's image and text embeddings."""

    kind: Literal["clip_score"] = "clip_score"


class RewardScore(ModelScore):
    """Reward such as PickScore: the cosine similarity times the CLIP model's learned scale."""

    kind: Literal["reward"] = "reward"
    processor: HubReference | None = Field(
        default=None,
        exclude_if=is_unset,
        description="Whose tokenizer and image processor are used, if the model has none.",
    )


class AestheticScore(ModelScore):
    """Aesthetic score: a head, in a separate file, on a CLIP model's image embedding."""

    kind: Literal["aesthetic"] = "aesthetic"
    head: Location = Field(description="The safetensors file of the layers, on this machine.")


class ClassifierScore(ModelScore):
    """Probability of a label, from 0 to 1, by an image classifier."""

    kind: Literal["classifier"] = "classifier"
    label: NonEmptyText = Field(description="The label in the model's config.json, such as nsfw.")


class SharpnessScore(Score):
    """Sharpness: the variance of the Laplacian of an image's luma. Needs no model."""

    kind: Literal["sharpness"] = "sharpness"


class OwnScore(Score):
    """A user-defined score, imported where the images are generated."""

    kind: Literal["own"] = "own"
    entry: str = Field(
        pattern=ENTRY_PATTERN,
        max_length=200,
        description="The function or class, as package.module:name.",
    )

    @field_validator("entry")
    @classmethod
    def _require_own_function(cls, entry: str) -> str:
        return require_own_function(entry)


AnyModelScore = ClipScore | RewardScore | AestheticScore | ClassifierScore
AnyScore = Annotated[AnyModelScore | SharpnessScore | OwnScore, Field(discriminator="kind")]


class KeepSettings(Settings):
    """Best-of-n selection: of several candidates, the image with the highest score is kept."""

    model_config = ConfigDict(json_schema_extra=_allow_text)

    of: Integer = Field(
        ge=2, le=MAX_CANDIDATES, description="How many candidates each image of a prompt has."
    )
    by: ScoreName = Field(description="The score that decides.")

    @model_validator(mode="before")
    @classmethod
    def _parse_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(KEEP_PATTERN, " ".join(value.split()))
        if match is None:
            raise ValueError(
                f'is "{value[:60]}"; write it as: best 1 of 4 by clip_score, with the name of a '
                "score"
            )
        return {"of": int(match[1]), "by": match[2]}


def check_scores(
    scores: Mapping[str, AnyScore], keep: KeepSettings | None, taken_names: Collection[str]
) -> None:
    """Raise ValueError if the name of a score is taken, or `keep` names an unknown score."""
    for name in scores:
        if name in RESERVED_NAMES or name in taken_names:
            raise ValueError(
                f"has scores.{name}, the name of a column, gate or status; rename the score"
            )
    if keep is not None and keep.by not in scores:
        names = ", ".join(scores) or "none"
        raise ValueError(
            f'has keep by "{keep.by}", and the scores are {names}; name one of them, or add one, '
            "such as scores.sharpness: {kind: sharpness}"
        )
