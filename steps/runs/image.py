"""One image, as planned, generated and encoded, and the batches in which images are generated."""

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
# An image that was taken down: not stored, and not made again.
FORGOTTEN_STATUS: Final = "forgotten"
STATUSES = (*get_args(ImageStatus), MISSING_STATUS)


@dataclass(frozen=True, slots=True)
class ImageParameters:
    """All settings that decide the pixels of one image, apart from the model. Sizes are in pixels.

    `guidance` is None if the model takes none, or follows a guidance schedule. `loras` is
    canonical, such as "style:0.8,detail:0.5". Input images are named by the SHA-256 of their files.
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
    reference_images: str | None = None
    guidance_rescale: float | None = None


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image to generate. `id` is the prompt row's own id, if the input has such a column."""

    index_in_part: int
    image_id: str
    parameters: ImageParameters
    id: str | None = None
    image_index: int = 0


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Settings shared by all images of a batch. Sizes are in pixels.

    `input_images` names the input image columns that are not null.
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
    """One score of an image, or the reason why there is none."""

    value: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """Generated image of one row: RGB uint8 (height, width, 3), or the error.

    `scores` is set once they are computed, if the job has any. `candidate_rank` counts from 1 if
    the image competes with others of its prompt. `captions` maps the names of passes to captions.
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
    """Images of some rows after all passes, and the seconds that each pass took, by name."""

    images: Sequence[DrawnImage]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ImageQuality:
    """Quality measures of an image, the gates it failed, and the reasons of the user's checks."""

    failed_gates: tuple[str, ...]
    reason: str | None
    measures: ImageMeasures


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image ready to be stored. Content, hashes and quality are set if the status is ok.

    `pixels_sha256` is the hash of the pixels before encoding. `suffix` is the file suffix, with its
    dot.
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
    """Convert one part's slice of a shard to image rows, with the sizes at generation."""
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
    """Return the shape of the batches that can contain a row."""
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
    """Group consecutive rows that can share a batch."""
    for _, run in groupby(rows, batch_shape):
        yield list(run)


def pad_rows(rows: Sequence[ImageRow], size: int) -> list[ImageRow]:
    """Repeat the last row until the batch has `size` rows.

    A batch of another size gives other bytes for the same rows.
    """
    padding = [rows[-1]] * (size - len(rows))
    return [*rows, *padding]


CAPTION_SETTINGS = ("seed", "steps", "guidance", "sampler", "loras", "strength")
SettingValues: TypeAlias = Mapping[str, object]


def find_varied_settings(
    images: Iterable[tuple[str, SettingValues]],
) -> dict[str, tuple[str, ...]]:
    """Find the settings that differ among the images of each prompt.

    Takes pairs of prompt and settings.
    """
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
    """Format a setting with its value, such as `guidance 2.5`."""
    if value is None or value == "":
        return f"no {name}"
    if isinstance(value, float):
        return f"{name} {value:g}"
    return f"{name} {value}"
