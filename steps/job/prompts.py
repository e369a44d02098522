"""Settings of prompts: lists in the job, templates, and rewriting by a language model."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from imagekiln.steps.job.columns import MAX_SEED, SEED, Sampler
from imagekiln.steps.job.fields import (
    Dtype,
    Guidance,
    HubReference,
    Integer,
    Location,
    NonEmptyText,
    Number,
    Settings,
    StepCount,
    is_unset,
)
from imagekiln.steps.prompts.parser import parse_template
from imagekiln.steps.prompts.template import TemplateMistake

MAX_PROMPTS = 100_000_000
# Limit if the job does not set a number of random combinations.
MAX_COMBINED_PROMPTS = 1_000_000
MAX_TEMPLATES = 100
MAX_TEXTS = 100
MAX_SWEEP_VALUES = 1000
# Columns that a plan carries in addition to the job's, to record the origin of each prompt.
TEMPLATE_COLUMN = "prompt_template"
CHOICES_COLUMN = "prompt_choices"
RECIPE_COLUMNS = (TEMPLATE_COLUMN, CHOICES_COLUMN)

SweepSeed = Annotated[Integer, Field(ge=SEED.lowest, le=SEED.highest)]


class PromptSweep(Settings):
    """Values of settings to sweep. Every prompt is generated with each combination."""

    seed: tuple[SweepSeed, ...] = Field(default=(), max_length=MAX_SWEEP_VALUES)
    guidance: tuple[Guidance, ...] = Field(default=(), max_length=MAX_SWEEP_VALUES)
    steps: tuple[StepCount, ...] = Field(default=(), max_length=MAX_SWEEP_VALUES)
    sampler: tuple[Sampler, ...] = Field(default=(), max_length=MAX_SWEEP_VALUES)
    loras: tuple[str, ...] = Field(
        default=(),
        max_length=MAX_SWEEP_VALUES,
        description="LoRAs with their weights as rows have them; an empty text is none.",
    )

    @property
    def values(self) -> dict[str, tuple[int | float | str, ...]]:
        """Values of each swept column, in the order of the settings."""
        return {name: values for name, values in self if values}


class PromptList(Settings):
    """A list of prompts in the job itself, to try a model without a table."""

    texts: tuple[NonEmptyText, ...] = Field(
        min_length=1, max_length=MAX_TEXTS, description="Prompts, at most 100."
    )


class RunPrompts(Settings):
    """The images of earlier runs as prompt rows, each with the prompt that it was made from."""

    run: Location = Field(
        description="The folder or URI of a finished run, or of an output with such runs."
    )


class PromptTemplate(Settings):
    """Prompts made from a template, alone or for each row of a table or image of a run."""

    template: NonEmptyText | Annotated[tuple[NonEmptyText, ...], Field(min_length=1)] = Field(
        description="One or more templates, such as a {red|blue} __animal__ in {{ city }}."
    )
    negative_template: NonEmptyText | None = Field(
        default=None, description="The template of the negative prompt."
    )
    table: Location | Annotated[tuple[Location, ...], Field(min_length=1)] | None = Field(
        default=None, description="Paths, globs, folders or URIs of the table with the columns."
    )
    run: Location | None = Field(
        default=None,
        exclude_if=is_unset,
        description="In place of a table: the folder or URI of a finished run, or of an output, "
        "whose images become prompt rows.",
    )
    wildcards: Location | None = Field(
        default=None, description="The folder or URI with the wildcard files, such as animal.txt."
    )
    combinations: Literal["all"] | Annotated[Integer, Field(ge=1, le=MAX_PROMPTS)] = Field(
        default="all",
        description="all, or how many prompts are drawn at random for each row of the table.",
    )
    sweep: PromptSweep = PromptSweep()

    @field_validator("template", "negative_template")
    @classmethod
    def _require_template(cls, value: str | tuple[str, ...] | None) -> object:
        templates = (value,) if isinstance(value, str) else value or ()
        if len(templates) > MAX_TEMPLATES:
            raise ValueError(f"has {len(templates)} templates; write at most {MAX_TEMPLATES}")
        for number, template in enumerate(templates, start=1):
            try:
                parse_template(template)
            except TemplateMistake as mistake:
                which = f"template {number}, " if len(templates) > 1 else ""
                raise ValueError(f"is no template: {which}{mistake}") from mistake
        return value

    @model_validator(mode="after")
    def _require_one_source(self) -> "PromptTemplate":
        if self.run is not None and self.table is not None:
            raise ValueError("has run and table; remove one of them")
        return self

    @property
    def templates(self) -> tuple[str, ...]:
        """The setting `template` as a tuple."""
        return (self.template,) if isinstance(self.template, str) else self.template

    @property
    def most_prompts(self) -> int:
        """Maximum number of prompts that the template may make."""
        return MAX_COMBINED_PROMPTS if self.combinations == "all" else MAX_PROMPTS

    @property
    def table_patterns(self) -> tuple[str, ...]:
        """The setting `table` as a tuple; empty if there is none."""
        if self.table is None:
            return ()
        return (self.table,) if isinstance(self.table, str) else self.table


PROMPT_PLACEHOLDER = "{prompt}"
# Columns that a plan carries in addition to the job's, to record the original prompts.
ORIGINAL_COLUMN = "prompt_original"
OUTCOME_COLUMN = "prompt_rewrite"
REWRITE_COLUMNS = (ORIGINAL_COLUMN, OUTCOME_COLUMN)


class LanguageModelSettings(HubReference):
    """A causal or sequence-to-sequence transformers language model."""

    dtype: Dtype = "bfloat16"


class RewriteSettings(Settings):
    """A language model that rewrites each prompt once, before the run is planned."""

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
        default=0.0,
        ge=0,
        le=10,
        description="0 takes the likeliest token; above, samples.",
    )
    seed: Integer = Field(default=0, ge=0, le=MAX_SEED, description="The seed of sampling.")

    @field_validator("instruction")
    @classmethod
    def _require_placeholder(cls, instruction: str) -> str:
        if PROMPT_PLACEHOLDER not in instruction:
            raise ValueError(f"has no {PROMPT_PLACEHOLDER}; write it where the prompt goes")
        return instruction

    def instruct(self, prompt: str) -> str:
        """Build the instruction for a prompt."""
        return self.instruction.replace(PROMPT_PLACEHOLDER, prompt)
