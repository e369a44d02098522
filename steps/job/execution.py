"""Settings of a job's execution: shards, parts, batches, speed, limits, prices and budget."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from imagekiln.steps.job.fields import (
    Location,
    NonEmptyText,
    Number,
    PositiveInteger,
    Settings,
    Share,
    is_unset,
)

DEFAULT_BATCH_IMAGES = 8
DEFAULT_PART_IMAGES = 64
# Of weights: all on the GPU; text encoders and denoiser by turns; streamed to it layer by layer.
Placement: TypeAlias = Literal["resident", "texts_first", "offload"]
FIRST_STEPS = 3  # always computed, as in diffusers' TaylorSeer cache
MAX_SHARD_IMAGES = 100_000  # a shard's rows are held in memory


class ShardSettings(Settings):
    """The size of a shard, the work of one pod, in images or minutes."""

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
    """The size of a part, which one commit writes: a minute or two of work."""

    images: Annotated[PositiveInteger, Field(le=10_000)] | None = Field(
        default=None,
        description=(
            f"If absent, {DEFAULT_PART_IMAGES}, or fewer of a model that is known to be slow."
        ),
    )


class BatchSettings(Settings):
    """The batch size of the denoiser: fixed, or as measured by `tune`."""

    images: Annotated[PositiveInteger, Field(le=1024)] | None = Field(
        default=None, description=f"If absent, as tuned, or else {DEFAULT_BATCH_IMAGES}."
    )
    tuning: Location | None = Field(
        default=None, description="The file that `imagekiln tune` wrote: a path or URI."
    )


class JobLimits(Settings):
    """Limits on the shares of rejected rows and failed images."""

    rejected_share: Share = Field(
        default=0.01, description="Planning fails when a larger share of the rows is rejected."
    )
    failed_share: Share = Field(
        default=0.0, description="The run fails when a larger share of the images is not ok."
    )


class BudgetSettings(Settings):
    """Limits on the cost of a run with all its retries. Plans do not contain them."""

    gpu_hours: Number | None = Field(
        default=None, gt=0, description="The most GPU-hours that the run may take."
    )
    cost: Number | None = Field(
        default=None, gt=0, description="The most that the run may cost; needs a price."
    )

    @property
    def is_limited(self) -> bool:
        """Return whether any limit is set."""
        return self != BudgetSettings()


def _restore_on_off(value: object) -> object:
    # YAML reads a bare on and off as true and false.
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


class StepCacheSettings(Settings):
    """A step cache: some steps are extrapolated from the last two computed steps."""

    interval: Annotated[PositiveInteger, Field(ge=2, le=10)] = Field(
        description="Every how many steps one is computed, after the first three."
    )


class SpeedSettings(Settings):
    """Options to run the model faster. `compile`, `vae` and `placement` change no image ids."""

    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_restore_on_off)] = Field(
        default="auto", description="auto compiles the model on CUDA devices only, on always."
    )
    vae: Literal["auto", "whole", "tiles"] = Field(
        default="auto",
        description="How latents are decoded; auto decodes in pieces only if memory is short.",
    )
    placement: Literal["auto"] | Placement = Field(
        default="auto",
        description="Where weights are kept; auto takes the first that fits the GPU's memory.",
    )
    quantization: Literal["none", "fp8", "nvfp4"] = Field(
        default="none",
        description="fp8 computes the denoiser in 8 bits, nvfp4 in 4; the GPU must support it.",
    )
    guidance_interval: tuple[Share, Share] | None = Field(
        default=None,
        exclude_if=is_unset,
        description="The shares of the steps between which guidance applies, such as [0, 0.6].",
    )
    step_cache: StepCacheSettings | None = Field(default=None, exclude_if=is_unset)

    @field_validator("guidance_interval")
    @classmethod
    def _require_interval(cls, interval: tuple[float, float] | None) -> tuple[float, float] | None:
        if interval is None or interval == (0, 1):
            return None  # all steps: no shortcut
        start, end = interval
        if start >= end:
            raise ValueError(
                f"is [{start:g}, {end:g}]; write the lower share first, or set guidance to 1 for "
                "images without guidance"
            )
        return interval

    def is_guided(self, step: int, steps: int) -> bool:
        """Return whether guidance applies at a step, counted from 0, of `steps`."""
        if self.guidance_interval is None:
            return True
        start, end = self.guidance_interval
        return round(start * steps) <= step < round(end * steps)

    def is_extrapolated(self, step: int) -> bool:
        """Return whether a step, counted from 0, is extrapolated."""
        if self.step_cache is None or step < FIRST_STEPS:
            return False
        return (step - FIRST_STEPS - 1) % self.step_cache.interval != 0

    @model_validator(mode="after")
    def _require_compile_for_quantization(self) -> "SpeedSettings":
        method = self.quantization
        if method != "none" and self.compile == "off":
            raise ValueError(
                f"has quantization: {method} and compile: off; without compilation, {method} is "
                "slower than bfloat16, so remove one of them"
            )
        return self


PriceNumber = Annotated[Number, Field(ge=0)]
PriceTable = Annotated[dict[NonEmptyText, PriceNumber], Field(min_length=1)]
# The discriminator keeps errors of the other member out of messages.
PricePerHour: TypeAlias = Annotated[
    Annotated[PriceNumber, Tag("number")] | Annotated[PriceTable, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict) else "number"),
]


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a GPU per hour, and its source.

    With `is_highest`, it is the highest price of a table without a price for the GPU.
    """

    per_hour: float
    source: str
    is_highest: bool = False


def find_price(prices: PricePerHour | None, gpu: str | None) -> Price | None:
    """Return the price of a GPU; None if the table has none.

    Without a name, a table with a single price returns it.
    """
    if prices is None:
        return None
    if not isinstance(prices, dict):
        return Price(prices, "one price for all GPUs")
    if gpu is None:
        return find_highest_price(prices) if len(prices) == 1 else None
    for name, per_hour in prices.items():
        if normalize_gpu(name) == normalize_gpu(gpu):
            return Price(per_hour, name)
    return None


def find_highest_price(prices: PricePerHour | None) -> Price | None:
    """Return the price of the most expensive GPU; None if no price is known."""
    if not isinstance(prices, dict):
        return find_price(prices, None)
    name = max(prices, key=prices.__getitem__)
    return Price(prices[name], name)


def find_price_or_highest(prices: PricePerHour | None, gpu: str | None) -> Price | None:
    """Return the price of a GPU, or else the highest price; None if no price is known."""
    price = find_price(prices, gpu)
    if price is not None:
        return price
    highest = find_highest_price(prices)
    return None if highest is None else replace(highest, is_highest=True)


def normalize_gpu(name: str) -> str:
    """Normalize a GPU name: nvidia-smi has spaces, and node labels have hyphens instead."""
    return "-".join(name.lower().split())
