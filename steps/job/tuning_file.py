"""The tuning file: the batch that `imagekiln tune` measured for each model, image size and GPU."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import AfterValidator, AwareDatetime, Field

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.job.fields import (
    Dtype,
    NonEmptyText,
    Number,
    PositiveInteger,
    Settings,
    StepCount,
)
from imagekiln.steps.job.settings_file import parse_settings, validate_settings
from imagekiln.steps.storage.uri import decode_text, locate_object

TUNING_VERSION = 1
TUNING_FILE_HEADER = "# What `imagekiln tune` measured. A job reads it by batch.tuning.\n"
MAX_BATCH_IMAGES = 256


def _require_power_of_two(batch: int) -> int:
    # With other batches, some images got other bytes depending on their index in the batch.
    if batch & (batch - 1):
        raise ValueError(f"is {batch}; write a power of two")
    return batch


Gibibytes = Annotated[Number, Field(ge=0, le=1_000_000)]
SidePixels = Annotated[PositiveInteger, Field(le=2**16)]
PowerOfTwoImages = Annotated[
    PositiveInteger, Field(le=MAX_BATCH_IMAGES), AfterValidator(_require_power_of_two)
]
TuningKey: TypeAlias = tuple[str, str, str, str, int, int, int, bool]


class BatchRate(Settings):
    """One measured batch: its images per second, and its peak memory if the device reports it."""

    batch: PowerOfTwoImages
    images_per_second: Number = Field(gt=0)
    peak_gib: Gibibytes | None = None


class TuningEntry(Settings):
    """The batch for one model, image size and GPU.

    `seconds_per_image` is for this batch and number of steps. `guided`: whether the denoiser runs
    twice a step, for the negative prompt.
    """

    model: NonEmptyText
    digest: NonEmptyText
    dtype: Dtype
    speed: SpeedSettings = SpeedSettings()
    gpu: NonEmptyText
    gpu_gib: Gibibytes | None = None
    width: SidePixels
    height: SidePixels
    guided: bool
    batch: PowerOfTwoImages
    steps: StepCount
    seconds_per_image: Number = Field(gt=0, le=86_400)
    measured: tuple[BatchRate, ...] = ()
    when: AwareDatetime
    versions: dict[NonEmptyText, NonEmptyText] = Field(default_factory=dict)

    @property
    def tuning_key(self) -> TuningKey:
        """The key of the entry in its file. A slice of a GPU has its own name and memory."""
        speed = self.speed.model_dump_json(exclude_defaults=True)
        memory = round(self.gpu_gib or 0)  # drivers differ in the last megabytes
        model = (self.digest, self.dtype, speed, self.gpu, memory)
        return (*model, self.width, self.height, self.guided)

    @property
    def forward_pixels(self) -> int:
        """The pixels that one forward of the denoiser computes for an image."""
        return forward_pixels(self.width, self.height, guided=self.guided)


class TuningFile(Settings):
    """A tuning file."""

    version: Literal[1] = 1
    entries: tuple[TuningEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The entry for each size that was asked for, and how many of them were measured this time."""

    file: str
    entries: tuple[TuningEntry, ...]
    measured: int


def forward_pixels(width: int, height: int, *, guided: bool) -> int:
    """The pixels of one image in a forward of the denoiser: twice as many with guidance."""
    return width * height * (2 if guided else 1)


def read_tuning_file(name: str) -> TuningFile:
    """The tuning file at a path or URI. Raises Missing, TryAgain, BadInput for each mistake."""
    store, key = locate_object(name)
    return parse_tuning_file(store.read(key), name)


def read_tuning_file_or_empty(name: str) -> TuningFile:
    """The tuning file at a path or URI; one without entries if there is none yet."""
    try:
        return read_tuning_file(name)
    except Missing:
        return TuningFile()


def add_tuning_entries(name: str, *added: TuningEntry) -> None:
    """Write entries into the file, in place of those with their keys. Raises BadInput, TryAgain."""
    old = read_tuning_file_or_empty(name).entries
    entries = {entry.tuning_key: entry for entry in (*old, *added)}
    tuning = TuningFile(entries=tuple(entries[key] for key in sorted(entries)))
    # `version` has its default too, but must be in the file.
    values = {"version": TUNING_VERSION} | tuning.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    store, key = locate_object(name)
    store.replace(key, (TUNING_FILE_HEADER + text).encode())


def parse_tuning_file(content: bytes, name: str) -> TuningFile:
    """The tuning file in these bytes, YAML or JSON. Raises BadInput with each mistake."""
    text = decode_text(content, name, "a tuning file")
    values, locations = parse_settings(text, name, "what `imagekiln tune` wrote")
    if values.get("version") != TUNING_VERSION:
        raise BadInput(
            f"{name}: is not a tuning file of version {TUNING_VERSION}. Choose one that this "
            "Imagekiln's `imagekiln tune` wrote, or tune again."
        )
    return validate_settings(TuningFile, values, name, locations)
