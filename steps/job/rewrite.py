"""The settings of prompts that a language model rewrites before the run is planned."""

from pydantic import Field, field_validator

from imagekiln.steps.job.columns import MAX_SEED
from imagekiln.steps.job.fields import (
    Dtype,
    HubReference,
    Integer,
    NonEmptyText,
    Number,
    Settings,
)

PROMPT_PLACEHOLDER = "{prompt}"
# What a plan carries beside the job's own columns, so that each prompt says what it was.
ORIGINAL_COLUMN = "prompt_original"
OUTCOME_COLUMN = "prompt_rewrite"
REWRITE_COLUMNS = (ORIGINAL_COLUMN, OUTCOME_COLUMN)


class LanguageModelSettings(HubReference):
    """A causal or sequence-to-sequence language model of transformers."""

    dtype: Dtype = "bfloat16"


class RewriteSettings(Settings):
    """A language model that rewrites each prompt, once, before the run is planned."""

    model: LanguageModelSettings
    instruction: NonEmptyText = Field(
        default=PROMPT_PLACEHOLDER,
        description="What the model is asked, with {prompt} in the place of the prompt.",
    )
    append: bool = Field(
        default=False,
        description="Writes the model's text behind the prompt, for models that continue prompts.",
    )
    temperature: Number = Field(
        default=0.0, ge=0, le=10, description="0 takes the likeliest token; above, it is drawn."
    )
    seed: Integer = Field(default=0, ge=0, le=MAX_SEED, description="Of what is drawn.")

    @field_validator("instruction")
    @classmethod
    def _require_placeholder(cls, instruction: str) -> str:
        if PROMPT_PLACEHOLDER not in instruction:
            raise ValueError(f"has no {PROMPT_PLACEHOLDER}; write it where the prompt goes")
        return instruction

    def instruct(self, prompt: str) -> str:
        """What the model is asked for a prompt."""
        return self.instruction.replace(PROMPT_PLACEHOLDER, prompt)
