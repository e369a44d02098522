"""What `tune` found: the batch size for each model, size of images and GPU, as the tuning file has it."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, AwareDatetime, Field

from imagekiln.steps.saturation import MAX_BATCH_IMAGES, StopReason
from imagekiln.steps.speed import SpeedSettings
from imagekiln.steps.values import Integer, NonEmptyText, Number, PositiveInteger, Settings

MAX_TUNING_ENTRIES = 2000
MAX_TUNING_NAME_CHARS = 500  # characters


def _require_power_of_two(batch: int) -> int:
    if batch & (batch - 1):  # other batches changed the bytes of some images from place to place
        raise ValueError(f"is {batch}; write a power of two")
    return batch


TuningName = Annotated[NonEmptyText, Field(max_length=MAX_TUNING_NAME_CHARS)]
PowerOfTwoImages = Annotated[PositiveInteger, Field(le=MAX_BATCH_IMAGES), AfterValidator(_require_power_of_two)]
Gibibytes = Annotated[Number, Field(ge=0, le=1_000_000)]
SidePixels = Annotated[PositiveInteger, Field(le=2**16)]
TuningKey: TypeAlias = tuple[str, str, str, str, int, int, int, bool]


class BatchRate(Settings):
    """A batch that was measured: images a second, and memory at most in GiB, where the device tells."""

    batch: PowerOfTwoImages
    images_per_second: Number = Field(gt=0)
    peak_gib: Gibibytes | None = None


class TuningEntry(Settings):
    """The batch for one model, shape and GPU. `seconds_per_image` is for this batch and so many steps.

    `guided`: whether the denoiser runs twice a step, for the negative prompt. `stopped` says why no larger batch was
    measured.
    """

    model: TuningName
    digest: TuningName
    dtype: Literal["float32", "bfloat16", "float16"]
    speed: SpeedSettings = SpeedSettings()
    gpu: TuningName
    gpu_gib: Gibibytes | None = None
    width: SidePixels
    height: SidePixels
    guided: bool
    batch: PowerOfTwoImages
    steps: Integer = Field(ge=1, le=1000)
    seconds_per_image: Number = Field(gt=0, le=86_400)
    stopped: StopReason
    measured: Annotated[tuple[BatchRate, ...], Field(max_length=16)] = ()
    when: AwareDatetime
    versions: Annotated[dict[TuningName, TuningName], Field(max_length=16)] = Field(default_factory=dict)

    @property
    def tuning_key(self) -> TuningKey:
        """What there is one entry for. A slice of a GPU has a name and memory of its own."""
        gpu = self.gpu, self.gpu_gib
        return tuning_entry_key(self.digest, self.dtype, self.speed, *gpu, self.width, self.height, self.guided)

    @property
    def forward_pixels(self) -> int:
        """What one image asks of a forward, in pixels."""
        return forward_pixels(self.width, self.height, guided=self.guided)


class TuningFile(Settings):
    """A tuning file."""

    version: Literal[1] = 1
    entries: Annotated[tuple[TuningEntry, ...], Field(max_length=MAX_TUNING_ENTRIES)] = ()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The entry for each shape asked for, in the file, and how many of them were measured now."""

    file: str
    entries: tuple[TuningEntry, ...]
    measured: int


def throughput_settings(speed: SpeedSettings) -> SpeedSettings:
    """The settings with those at their defaults that do not enter into how fast images are drawn."""
    return speed.model_copy(update={"compile_cache": SpeedSettings().compile_cache})


def tuning_entry_key(
    digest: str, dtype: str, speed: SpeedSettings, gpu: str, gib: float | None, width: int, height: int, guided: bool
) -> TuningKey:
    """What there is one entry for, in the order in which the file has them."""
    memory = round(gib or 0)  # drivers differ in the last megabytes
    return (
        digest,
        dtype,
        throughput_settings(speed).model_dump_json(exclude_defaults=True),
        gpu,
        memory,
        width,
        height,
        guided,
    )


def forward_pixels(width: int, height: int, *, guided: bool) -> int:
    """What one image of so many pixels asks of a forward: twice as much with guidance."""
    return width * height * (2 if guided else 1)
