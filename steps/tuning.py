"""The tuning file: the batch size that `tune` found for each model, shape and GPU. People read it and write in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import AfterValidator, AwareDatetime, Field, ValidationError

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.mistakes import sentences
from imagekiln.steps.remote import is_remote
from imagekiln.steps.saturation import LARGEST, Stopped
from imagekiln.steps.speed import Speed
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.values import Number, Positive, Settings, Text, Whole

VERSION = 1
MOST_ENTRIES = 2000
MOST_BYTES = 8 * 2**20
MOST_SAID = 5  # mistakes: a file with one mistake may have it in every entry
HEADER = "# What `imagekiln tune` measured. A job reads it by batch.tuning.\n"


def _power_of_two(batch: int) -> int:
    if batch & (batch - 1):  # other batches changed the bytes of some images from place to place
        raise ValueError(f"is {batch}; write a power of two")
    return batch


Name = Annotated[Text, Field(max_length=500)]
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


def read(name: str) -> Tuning:
    """The tuning file at a path or URI. Raises Missing, BadInput with what is wrong in it, TryAgain."""
    store, key = _place(name)
    with store.open(key) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BadInput(f"{name}: is larger than {MOST_BYTES} bytes, so it is no tuning file. Name another.")
    return parse(content, name)


def read_or_empty(name: str) -> Tuning:
    """The same, where there need not be one yet."""
    try:
        return read(name)
    except Missing:
        return Tuning()


def add(name: str, entry: Entry) -> None:
    """Write an entry into the file, in place of the one with its key. Raises BadInput, TryAgain."""
    others = [each for each in read_or_empty(name).entries if each.key != entry.key]
    if len(others) >= MOST_ENTRIES:
        raise BadInput(f"{name}: has {len(others)} entries, and no more fit. Remove old ones, or name another --file.")
    store, key = _place(name)
    store.replace(key, to_yaml(Tuning(entries=tuple(sorted([*others, entry], key=lambda each: each.key)))))


def to_yaml(tuning: Tuning) -> bytes:
    """The file's bytes, without what is at its default."""
    # `version` is a default too, and the one thing that must be there.
    values = {"version": VERSION} | tuning.model_dump(mode="json", exclude_defaults=True)
    return (HEADER + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)).encode()


def parse(content: bytes, name: str) -> Tuning:
    """The tuning file in these bytes, YAML or JSON. Raises BadInput, a sentence for each of the first mistakes."""
    try:
        values = yaml.safe_load(content.decode("utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{name}: is no tuning file ({first_line(str(error))}). Correct it, or tune anew.") from error
    if not isinstance(values, dict) or "version" not in values:
        raise BadInput(f"{name}: is no tuning file: it has no version. Name one that `imagekiln tune` wrote.")
    if (version := values["version"]) != VERSION:
        said = f"version {version}" if isinstance(version, int) else "another version"
        raise BadInput(f"{name}: has {said}, and this Imagekiln reads {VERSION}. Use its own, or tune anew.")
    try:
        return Tuning.model_validate(values)
    except ValidationError as error:
        raise BadInput(*sentences(Tuning, error.errors()[:MOST_SAID], name, {})) from error


def _place(name: str) -> tuple[Store, str]:
    if is_remote(name):
        folder, _, key = name.rpartition("/")
        return open_store(folder), key
    path = Path(name.removeprefix("file://")).expanduser()
    return open_store(str(path.parent)), path.name
