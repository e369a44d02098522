"""Image rows as a shard lists them, and the batches they are made in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from imagekiln.steps.cells import INPUT_IMAGE_COLUMNS
from imagekiln.steps.identity import ImageParameters

ID_COLUMNS = ("image_id", "id", "image_index")


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image to make. `place` is its place in the part; `id` is that of the input's row, where it has one."""

    index_in_part: int
    image_id: str
    parameters: ImageParameters
    id: str | None = None
    image_index: int = 0


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


def image_rows(table: pa.Table) -> list[ImageRow]:
    """The image rows of one part's slice of a shard."""
    there = set(table.column_names)  # an older plan lacks columns, as if they were null
    columns = {
        name: table[name].to_pylist() if name in there else [None] * table.num_rows
        for name in (*ID_COLUMNS, *ImageParameters.__slots__)
    }
    pixels = [
        ImageParameters(*values) for values in zip(*(columns[name] for name in ImageParameters.__slots__), strict=True)
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
