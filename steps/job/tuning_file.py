"""Tuning files: batch sizes that `imagekiln tune` measured per model, image size and GPU."""

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
    # With other batch sizes, the pixels of some images depended on their index in the batch.
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
    """Measured images per second of a batch size, and peak memory if the device reports it."""

    batch: PowerOfTwoImages
    images_per_second: Number = Field(gt=0)
    peak_gib: Gibibytes | None = None


class TuningEntry(Settings):
    """The tuned batch size for one model, image size and GPU.

    `seconds_per_image` is for this batch size and number of steps. If `guided`, the denoiser runs
    twice per step, for the prompt and the negative prompt.
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
        """Key of the entry in its file. MIG slices differ from their GPU in name or memory."""
        speed = self.speed.model_dump_json(exclude_defaults=True)
        memory = round(self.gpu_gib or 0)  # drivers differ in the last megabytes
        model = (self.digest, self.dtype, speed, self.gpu, memory)
        return (*model, self.width, self.height, self.guided)

    @property
    def forward_pixels(self) -> int:
        """Pixels per image in a forward pass of the denoiser."""
        return forward_pixels(self.width, self.height, guided=self.guided)


class TuningFile(Settings):
    """The contents of a tuning file."""

    version: Literal[1] = 1
    entries: tuple[TuningEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The entries for all requested sizes, and how many of them were newly measured."""

    file: str
    entries: tuple[TuningEntry, ...]
    measured: int


def forward_pixels(width: int, height: int, *, guided: bool) -> int:
    """Return pixels per image in a forward pass of the denoiser; guidance doubles them."""
    return width * height * (2 if guided else 1)


def read_tuning_file(name: str) -> TuningFile:
    """Read the tuning file at a path or URI. Raises BadInput, Missing, TryAgain."""
    store, key = locate_object(name)
    return parse_tuning_file(store.read(key), name)


def read_tuning_file_or_empty(name: str) -> TuningFile:
    """Read the tuning file at a path or URI; empty if it does not exist."""
    try:
        return read_tuning_file(name)
    except Missing:
        return TuningFile()


def add_tuning_entries(name: str, *added: TuningEntry) -> None:
    """Add entries to the file, replacing entries with equal keys. Raises BadInput, TryAgain."""
    old = read_tuning_file_or_empty(name).entries
    entries = {entry.tuning_key: entry for entry in (*old, *added)}
    tuning = TuningFile(entries=tuple(entries[key] for key in sorted(entries)))
    # The file needs `version`, even though it has the default value.
    values = {"version": TUNING_VERSION} | tuning.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    store, key = locate_object(name)
    store.replace(key, (TUNING_FILE_HEADER + text).encode())


def parse_tuning_file(content: bytes, name: str) -> TuningFile:
    """Parse a tuning file in YAML or JSON. Raises BadInput with a sentence for each mistake."""
    text = decode_text(content, name, "a tuning file")
    values, locations = parse_settings(text, name, "what `imagekiln tune` wrote")
    if values.get("version") != TUNING_VERSION:
        raise BadInput(
            f"{name}: is not a tuning file of version {TUNING_VERSION}. Choose one that this "
            "Imagekiln's `imagekiln tune` wrote, or tune again."
        )
    return validate_settings(TuningFile, values, name, locations)
