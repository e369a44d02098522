"""One image, as it is planned, drawn and encoded, and the batches that images are drawn in."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa

from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.imaging.measures import ImageMeasures
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS as INPUT_IMAGE_COLUMNS
from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS

ID_COLUMNS = ("image_id", "id", "image_index")
ImageStatus = Literal["ok", "blank", "filtered", "failed", "outscored", "forgotten"]
MISSING_STATUS = "missing"  # in the manifest: a planned image that is in no part
OUTSCORED_STATUS: Final = "outscored"  # another candidate of the prompt is better
# An image that was taken down: it is neither stored nor made again.
FORGOTTEN_STATUS: Final = "forgotten"
STATUSES = (*get_args(ImageStatus), MISSING_STATUS)


@dataclass(frozen=True, slots=True)
class ImageParameters:
    """Everything that decides the pixels of one image, apart from the model. Sizes are in pixels.

    `guidance` is None if the model reads none, or follows a schedule of its own.
    `loras` is canonical text such as "style:0.8,detail:0.5". Input images are named by the SHA-256
    of their files.
    """

    prompt: str
    negative_prompt: str
    seed: int
    width: int
    height: int
    steps: int
    guidance: float | None
    sampler: str
    loras: str | None = None
    strength: float | None = None
    source_image: str | None = None
    mask_image: str | None = None
    control_image: str | None = None
    reference_image: str | None = None
    guidance_rescale: float | None = None


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image to make. `id` is the prompt row's own id, if the input has such a column."""

    index_in_part: int
    image_id: str
    parameters: ImageParameters
    id: str | None = None
    image_index: int = 0


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Settings that all images of a batch share. Sizes are in pixels.

    `input_images` are the columns of input images that are not null.
    """

    width: int
    height: int
    steps: int
    guidance: float | None
    sampler: str
    loras: str | None = None
    strength: float | None = None
    input_images: tuple[str, ...] = ()
    guidance_rescale: float | None = None


@dataclass(frozen=True, slots=True)
class ScoreValue:
    """One score of an image; None if there is none, with the reason."""

    value: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """The result of one row: RGB uint8 (height, width, 3), or why there is none.

    It has its `scores` once they are computed, if the job has any, and `candidate_rank`, from 1
    on, if it competes with others of its prompt. `captions` are by the names of passes.
    """

    index_in_part: int
    rgb: RGB | None
    status: ImageStatus = "ok"
    error: str | None = None
    scores: Mapping[str, ScoreValue] = field(default_factory=dict)
    candidate_rank: int | None = None
    captions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassedImages:
    """The images of some rows after all passes, and the seconds that each pass took, by name."""

    images: Sequence[DrawnImage]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ImageQuality:
    """The gates that an image failed, the reasons that the user's checks gave, and its measures."""

    failed_gates: tuple[str, ...]
    reason: str | None
    measures: ImageMeasures


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image as it will be stored. Content, hashes and quality are set if the status is ok.

    `pixels_sha256` is the hash of the pixels before encoding. `suffix` is the file's, with its dot.
    """

    index_in_part: int
    status: ImageStatus
    error: str | None = None
    content: bytes | None = None
    sha256: str | None = None
    pixels_sha256: str | None = None
    suffix: str = ""
    quality: ImageQuality | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    candidate_rank: int | None = None
    captions: Mapping[str, str] = field(default_factory=dict)


def image_rows(table: pa.Table) -> list[ImageRow]:
    """The image rows in one part's slice of a shard, with the sizes in which images are drawn."""
    names = [*ID_COLUMNS, *ImageParameters.__slots__]
    if DRAWN_SIZE_COLUMNS[0] in table.column_names:
        drawn = dict(zip(("width", "height"), DRAWN_SIZE_COLUMNS, strict=True))
        names = [drawn.get(name, name) for name in names]
    columns = [table[name].to_pylist() for name in names]
    rows: list[ImageRow] = []
    for image_id, row_id, image_index, *values in zip(*columns, strict=True):
        row = ImageRow(
            index_in_part=len(rows),
            image_id=image_id,
            parameters=ImageParameters(*values),
            id=row_id,
            image_index=image_index,
        )
        rows.append(row)
    return rows


def batch_shape(row: ImageRow) -> BatchShape:
    """The shape of the batches that a row can be drawn in."""
    parameters = row.parameters
    return BatchShape(
        width=parameters.width,
        height=parameters.height,
        steps=parameters.steps,
        guidance=parameters.guidance,
        sampler=parameters.sampler,
        loras=parameters.loras,
        strength=parameters.strength,
        input_images=tuple(
            name for name in INPUT_IMAGE_COLUMNS if getattr(parameters, name) is not None
        ),
        guidance_rescale=parameters.guidance_rescale,
    )


def group_by_shape(rows: Sequence[ImageRow]) -> Iterator[list[ImageRow]]:
    """Consecutive rows of one shape: those that can share a batch."""
    for _, run in groupby(rows, batch_shape):
        yield list(run)


def pad_rows(rows: Sequence[ImageRow], size: int) -> list[ImageRow]:
    """Rows filled up to a batch of `size` with the last one.

    A batch of another size gives other bytes for the same rows.
    """
    padding = [rows[-1]] * (size - len(rows))
    return [*rows, *padding]


CAPTION_SETTINGS = ("seed", "steps", "guidance", "sampler", "loras", "strength")
SettingValues: TypeAlias = Mapping[str, object]


def find_varied_settings(
    images: Iterable[tuple[str, SettingValues]],
) -> dict[str, tuple[str, ...]]:
    """By prompt, the settings that differ among its images. Takes prompts with settings."""
    by_prompt: defaultdict[str, list[SettingValues]] = defaultdict(list)
    for prompt, values in images:
        by_prompt[prompt].append(values)
    return {
        prompt: tuple(
            name for name in CAPTION_SETTINGS if len({values.get(name) for values in of_prompt}) > 1
        )
        for prompt, of_prompt in by_prompt.items()
    }


def describe_setting(name: str, value: object) -> str:
    """A setting with its value, such as `guidance 2.5`."""
    if value is None or value == "":
        return f"no {name}"
    if isinstance(value, float):
        return f"{name} {value:g}"
    return f"{name} {value}"
