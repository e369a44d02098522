"""What `tune` found: the batch size for each model, size of images and GPU, as the tuning file has it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import AfterValidator, AwareDatetime, Field, ValidationError

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.job.columns import STEPS
from imagekiln.steps.job.fields import Integer, NonEmptyText, Number, PositiveInteger, Settings
from imagekiln.steps.job.speed import SpeedSettings
from imagekiln.steps.job.validation_errors import describe_validation_errors
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.steps.storage.uri import is_remote_uri

MAX_TUNING_ENTRIES = 2000
MAX_TUNING_NAME_CHARS = 500  # characters


def _require_power_of_two(batch: int) -> int:
    if batch & (batch - 1):  # other batches changed the bytes of some images from place to place
        raise ValueError(f"is {batch}; write a power of two")
    return batch


TuningName = Annotated[NonEmptyText, Field(max_length=MAX_TUNING_NAME_CHARS)]
Gibibytes = Annotated[Number, Field(ge=0, le=1_000_000)]
SidePixels = Annotated[PositiveInteger, Field(le=2**16)]
TuningKey: TypeAlias = tuple[str, str, str, str, int, int, int, bool]


def throughput_settings(speed: SpeedSettings) -> SpeedSettings:
    """The settings with those at their defaults that do not enter into how fast images are drawn."""
    return speed.model_copy(update={"compile_cache": SpeedSettings().compile_cache})


def tuning_entry_key(
    digest: str,
    dtype: str,
    speed: SpeedSettings,
    gpu: str,
    gib: float | None,
    width: int,
    height: int,
    guided: bool,
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


TUNING_VERSION = 1
MAX_TUNING_FILE_BYTES = 8 * 2**20
MAX_REPORTED_ERRORS = 5  # mistakes: a file with one mistake may have it in every entry
TUNING_FILE_HEADER = "# What `imagekiln tune` measured. A job reads it by batch.tuning.\n"


def require_writable_tuning_file(name: str) -> None:
    """Write the file as it is, or an empty one, before anything is measured in vain. Raises BadInput, TryAgain."""
    _write_tuning_file(name, read_tuning_file_or_empty(name))


def _split_store_and_key(name: str) -> tuple[Store, str]:
    if is_remote_uri(name):
        folder, _, key = name.rpartition("/")
        return open_store(folder), key
    path = Path(name.removeprefix("file://")).expanduser()
    return open_store(str(path.parent)), path.name


MAX_MEMORY_SHARE = 0.9  # the share of the device's memory that a batch may take: other texts and a busy card take more
MAX_BATCH_IMAGES = 256
PowerOfTwoImages = Annotated[
    PositiveInteger, Field(le=MAX_BATCH_IMAGES), AfterValidator(_require_power_of_two)
]


class BatchRate(Settings):
    """A batch that was measured: images a second, and memory at most in GiB, where the device tells."""

    batch: PowerOfTwoImages
    images_per_second: Number = Field(gt=0)
    peak_gib: Gibibytes | None = None


StopReason = Literal["saturated", "memory", "largest", "time"]


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
    steps: Integer = Field(ge=STEPS.lowest, le=STEPS.highest)
    seconds_per_image: Number = Field(gt=0, le=86_400)
    stopped: StopReason
    measured: Annotated[tuple[BatchRate, ...], Field(max_length=16)] = ()
    when: AwareDatetime
    versions: Annotated[dict[TuningName, TuningName], Field(max_length=16)] = Field(
        default_factory=dict
    )

    @property
    def tuning_key(self) -> TuningKey:
        """What there is one entry for. A slice of a GPU has a name and memory of its own."""
        gpu = self.gpu, self.gpu_gib
        return tuning_entry_key(
            self.digest, self.dtype, self.speed, *gpu, self.width, self.height, self.guided
        )

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


def read_tuning_file(name: str) -> TuningFile:
    """The tuning file at a path or URI. Raises Missing, BadInput with what is wrong in it, TryAgain."""
    store, key = _split_store_and_key(name)
    with store.open(key) as file:
        content = file.read(MAX_TUNING_FILE_BYTES + 1)
    if len(content) > MAX_TUNING_FILE_BYTES:
        raise BadInput(
            f"{name}: is larger than {MAX_TUNING_FILE_BYTES} bytes, so it is no tuning file. Name another."
        )
    return parse_tuning_file(content, name)


def read_tuning_file_or_empty(name: str) -> TuningFile:
    """The same, where there need not be one yet."""
    try:
        return read_tuning_file(name)
    except Missing:
        return TuningFile()


def add_tuning_entry(name: str, entry: TuningEntry) -> None:
    """Write an entry into the file, in place of the one with its key. Raises BadInput, TryAgain."""
    others = [
        each
        for each in read_tuning_file_or_empty(name).entries
        if each.tuning_key != entry.tuning_key
    ]
    if len(others) >= MAX_TUNING_ENTRIES:
        raise BadInput(
            f"{name}: has {len(others)} entries, and no more fit. Remove old ones, or name another --file."
        )
    _write_tuning_file(
        name, TuningFile(entries=tuple(sorted([*others, entry], key=lambda each: each.tuning_key)))
    )


def tuning_to_yaml(tuning: TuningFile) -> bytes:
    """The file's bytes, without what is at its default."""
    # `version` is a default too, and the one thing that must be there.
    values = {"version": TUNING_VERSION} | tuning.model_dump(mode="json", exclude_defaults=True)
    return (
        TUNING_FILE_HEADER + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    ).encode()


def parse_tuning_file(content: bytes, name: str) -> TuningFile:
    """The tuning file in these bytes, YAML or JSON. Raises BadInput, a sentence for each of the first mistakes."""
    try:
        values = yaml.safe_load(content.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{name}: is no tuning file ({first_line(str(error))}). Correct it, or tune anew."
        ) from error
    if not isinstance(values, dict) or "version" not in values:
        raise BadInput(
            f"{name}: is no tuning file: it has no version. Name one that `imagekiln tune` wrote."
        )
    if (version := values["version"]) != TUNING_VERSION:
        said = f"version {version}" if isinstance(version, int) else "another version"
        raise BadInput(
            f"{name}: has {said}, and this Imagekiln reads {TUNING_VERSION}. Use its own, or tune anew."
        )
    try:
        return TuningFile.model_validate(values)
    except ValidationError as error:
        raise BadInput(
            *describe_validation_errors(TuningFile, error.errors()[:MAX_REPORTED_ERRORS], name, {})
        ) from error


def _write_tuning_file(name: str, tuning: TuningFile) -> None:
    store, key = _split_store_and_key(name)
    store.replace(key, tuning_to_yaml(tuning))
