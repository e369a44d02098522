"""What `tune` found: the batch size for each model, size of images and GPU, as the tuning file has it."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, AwareDatetime, Field

from imagekiln.steps.saturation import LARGEST, Stopped
from imagekiln.steps.speed import Speed
from imagekiln.steps.values import Number, Positive, Settings, Text, Whole

MOST_ENTRIES = 2000
MOST_NAME = 500  # characters


def _power_of_two(batch: int) -> int:
    if batch & (batch - 1):  # other batches changed the bytes of some images from place to place
        raise ValueError(f"is {batch}; write a power of two")
    return batch


Name = Annotated[Text, Field(max_length=MOST_NAME)]
Images = Annotated[Positive, Field(le=LARGEST), AfterValidator(_power_of_two)]
Gib = Annotated[Number, Field(ge=0, le=1_000_000)]
Side = Annotated[Positive, Field(le=2**16)]
Key: TypeAlias = tuple[str, str, str, str, int, int, int, bool]


class Rate(Settings):
    """A batch that was measured: images a second, and memory at most in GiB, where the device tells."""

    batch: Images
    images_per_second: Number = Field(gt=0)
    peak_gib: Gib | None = None


class Entry(Settings):
    """The batch for one model, shape and GPU. `seconds_per_image` is for this batch and so many steps.

    `guided`: whether the denoiser runs twice a step, for the negative prompt. `stopped` says why no larger batch was
    measured.
    """

    model: Name
    digest: Name
    dtype: Literal["float32", "bfloat16", "float16"]
    speed: Speed = Speed()
    gpu: Name
    gpu_gib: Gib | None = None
    width: Side
    height: Side
    guided: bool
    batch: Images
    steps: Whole = Field(ge=1, le=1000)
    seconds_per_image: Number = Field(gt=0, le=86_400)
    stopped: Stopped
    measured: Annotated[tuple[Rate, ...], Field(max_length=16)] = ()
    when: AwareDatetime
    versions: Annotated[dict[Name, Name], Field(max_length=16)] = Field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What there is one entry for. A slice of a GPU has a name and memory of its own."""
        gpu = self.gpu, self.gpu_gib
        return key(self.digest, self.dtype, self.speed, *gpu, self.width, self.height, self.guided)

    @property
    def load(self) -> int:
        """What one image asks of a forward, in pixels."""
        return load(self.width, self.height, guided=self.guided)


class Tuning(Settings):
    """A tuning file."""

    version: Literal[1] = 1
    entries: Annotated[tuple[Entry, ...], Field(max_length=MOST_ENTRIES)] = ()


@dataclass(frozen=True, slots=True)
class Tuned:
    """The entry for each shape asked for, in the file, and how many of them were measured now."""

    file: str
    entries: tuple[Entry, ...]
    measured: int


def deciding(speed: Speed) -> Speed:
    """The settings with those at their defaults that do not enter into how fast images are drawn."""
    return speed.model_copy(update={"compile_cache": Speed().compile_cache})


def key(
    digest: str, dtype: str, speed: Speed, gpu: str, gib: float | None, width: int, height: int, guided: bool
) -> Key:
    """What there is one entry for, in the order in which the file has them."""
    memory = round(gib or 0)  # drivers differ in the last megabytes
    return digest, dtype, deciding(speed).model_dump_json(exclude_defaults=True), gpu, memory, width, height, guided


def load(width: int, height: int, *, guided: bool) -> int:
    """What one image of so many pixels asks of a forward: twice as much with guidance."""
    return width * height * (2 if guided else 1)
