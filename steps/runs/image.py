"""Image rows as a shard lists them, and the batches they are made in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import pyarrow as pa

from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.imaging.measures import ImageMeasures
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS as INPUT_IMAGE_COLUMNS

ID_COLUMNS = ("image_id", "id", "image_index")


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What all images of a batch have in common. Sizes are in pixels; `pictures` are the columns that are not null."""

    width: int
    height: int
    steps: int
    guidance: float
    sampler: str
    loras: str | None = None
    strength: float | None = None
    input_images: tuple[str, ...] = ()


ImageStatus = Literal["ok", "blank", "filtered", "failed"]


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """What the denoiser gave for one row: RGB uint8 (height, width, 3), or the reason why there is none."""

    index_in_part: int
    rgb: RGB | None
    status: ImageStatus = "ok"
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ImageParameters:
    """Everything of one image that decides its pixels, but for the model.

    `loras` is canonical text such as "style:0.8,detail:0.5". The pictures are the SHA-256 of their files.
    """

    prompt: str
    negative_prompt: str
    seed: int
    width: int
    height: int
    steps: int
    guidance: float
    sampler: str
    loras: str | None = None
    strength: float | None = None
    source_image: str | None = None
    mask_image: str | None = None
    control_image: str | None = None
    reference_image: str | None = None


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image to make. `place` is its place in the part; `id` is that of the input's row, where it has one."""

    index_in_part: int
    image_id: str
    parameters: ImageParameters
    id: str | None = None
    image_index: int = 0


def image_rows(table: pa.Table) -> list[ImageRow]:
    """The image rows of one part's slice of a shard."""
    there = set(table.column_names)  # an older plan lacks columns, as if they were null
    columns = {
        name: table[name].to_pylist() if name in there else [None] * table.num_rows
        for name in (*ID_COLUMNS, *ImageParameters.__slots__)
    }
    pixels = [
        ImageParameters(*values)
        for values in zip(*(columns[name] for name in ImageParameters.__slots__), strict=True)
    ]
    each = zip(columns["image_id"], pixels, columns["id"], columns["image_index"], strict=True)
    return [ImageRow(place, *values) for place, values in enumerate(each)]


def batch_shape(row: ImageRow) -> BatchShape:
    """The shape of the batch that a row belongs to."""
    pixels = row.parameters
    pictures = tuple(name for name in INPUT_IMAGE_COLUMNS if getattr(pixels, name) is not None)
    return BatchShape(pixels.width, pixels.height, pixels.steps, pixels.guidance, pixels.sampler,
                 pixels.loras, pixels.strength, pictures)  # fmt: skip


def group_by_shape(rows: Sequence[ImageRow]) -> Iterator[list[ImageRow]]:
    """Runs of neighbours that may share a batch."""
    for _, run in groupby(rows, batch_shape):
        yield list(run)


def pad_rows(rows: Sequence[ImageRow], size: int) -> list[ImageRow]:
    """Rows filled up to a batch of `size` with the last of them: another shape would give other bytes."""
    return [*rows, *[rows[-1]] * (size - len(rows))]


@dataclass(frozen=True, slots=True)
class ImageQuality:
    """The gates that marked an image, what the user's checks gave as reasons, and what was measured."""

    failed_gates: tuple[str, ...]
    reason: str | None
    measures: ImageMeasures


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image as it will be stored. Bytes, hashes and what the gates found are there where the status is ok.

    `pixels_sha256` is of the pixels as they were drawn, and `suffix` ends the name of such a file.
    """

    index_in_part: int
    status: ImageStatus
    error: str | None = None
    content: bytes | None = None
    sha256: str | None = None
    pixels_sha256: str | None = None
    suffix: str = ""
    quality: ImageQuality | None = None


MISSING_STATUS = "missing"  # the status of an image that is unaccounted for
