"""Image rows as a shard lists them, and the batches they are made in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from imagekiln.steps.identity import Pixels

NAMED = ("image_id", "id", "image_index")


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image to make. `place` is its place in the part; `id` is that of the input's row, where it has one."""

    place: int
    image_id: str
    pixels: Pixels
    id: str | None = None
    image_index: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What all images of a batch have in common. Sizes are in pixels."""

    width: int
    height: int
    steps: int
    guidance: float
    sampler: str


def image_rows(table: pa.Table) -> list[ImageRow]:
    """The image rows of one part's slice of a shard."""
    columns = {name: table[name].to_pylist() for name in (*NAMED, *Pixels.__slots__)}
    pixels = [Pixels(*values) for values in zip(*(columns[name] for name in Pixels.__slots__), strict=True)]
    each = zip(columns["image_id"], pixels, columns["id"], columns["image_index"], strict=True)
    return [ImageRow(place, *values) for place, values in enumerate(each)]


def shape(row: ImageRow) -> Shape:
    """The shape of the batch that a row belongs to."""
    pixels = row.pixels
    return Shape(pixels.width, pixels.height, pixels.steps, pixels.guidance, pixels.sampler)


def same_shape(rows: Sequence[ImageRow]) -> Iterator[list[ImageRow]]:
    """Runs of neighbours that may share a batch."""
    for _, run in groupby(rows, shape):
        yield list(run)


def padded(rows: Sequence[ImageRow], size: int) -> list[ImageRow]:
    """Rows filled up to a batch of `size` with the last of them: another shape would give other bytes."""
    return [*rows, *[rows[-1]] * (size - len(rows))]
