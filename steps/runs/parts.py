"""A part: the images of one slice of a shard, whose commit is one Parquet object that is there whole or not at all.

In the format `parquet` it holds the images too. Then `image` comes first and is neither compressed nor
dictionary-encoded, so that each file's bytes lie in one piece: the footer tells where, and one ranged read fetches an
image without a Parquet reader. In other formats it is the index of images that lie elsewhere.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.image import EncodedImage, ImageQuality
from imagekiln.steps.runs.readback import PartRow, matches_rows
from imagekiln.steps.runs.tables import (
    DAMAGE_ERRORS,
    IMAGE_FIELD,
    OUTCOME_SCHEMA,
    damage_error,
    parquet_options,
    to_parquet,
)
from imagekiln.steps.storage.failures import is_storage_error
from imagekiln.steps.storage.store import Store


def quality_columns(found: Sequence[ImageQuality | None]) -> dict[str, list[object]]:
    """The columns of these images; images that are not ok were not looked at, and have no marks."""
    return {
        "marks": [[] if each is None else list(each.failed_gates) for each in found],
        "marks_reason": [None if each is None else each.reason for each in found],
        "contrast": [None if each is None else each.measures.contrast for each in found],
        "saturation": [None if each is None else each.measures.saturation for each in found],
        "phash": [None if each is None else each.measures.phash for each in found],
    }


OFFSETS_METADATA = b"imagekiln.offsets"
# What Hugging Face datasets reads to show the column as images.
HUGGINGFACE_METADATA = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})


@dataclass(frozen=True, slots=True)
class PartOutcomes:
    """What a part says of its images, without their bytes: `image_id`, the outcome's columns, and offsets."""

    table: pa.Table
    offsets: pa.Array


def part_to_parquet(rows: pa.Table, images: Sequence[EncodedImage]) -> bytes:
    """The part of these image rows with their images. The same rows and images give the same bytes."""
    table = _part_table(rows, images)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **_part_options(table.schema)) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        offsets = list(_find_offsets(sink.getvalue(), images))
        writer.add_key_value_metadata({OFFSETS_METADATA.decode(): json.dumps(offsets)})
    return sink.getvalue()


def index_to_parquet(rows: pa.Table, outcome: pa.Table, offsets: Sequence[int | None]) -> bytes:
    """The part of these image rows without their images, which begin at `offsets` in objects of their own."""
    table = join_outcome(rows, outcome).replace_schema_metadata(
        {OFFSETS_METADATA.decode(): json.dumps(list(offsets))}
    )
    return to_parquet(table)


def join_outcome(rows: pa.Table, outcome: pa.Table) -> pa.Table:
    """All that there is to say of images: their rows and, in the same order, what became of them."""
    return pa.Table.from_arrays(
        [*rows.columns, *outcome.columns], schema=pa.schema([*rows.schema, *outcome.schema])
    )


def outcome_table(images: Sequence[EncodedImage]) -> pa.Table:
    """What became of the images, in the order of their rows."""
    ordered = sorted(images, key=lambda image: image.index_in_part)
    values = {
        "status": [image.status for image in ordered],
        "error": [image.error for image in ordered],
        "size": [None if image.content is None else len(image.content) for image in ordered],
        "sha256": [image.sha256 for image in ordered],
        "pixels_sha256": [image.pixels_sha256 for image in ordered],
        **quality_columns([image.quality for image in ordered]),
    }
    return pa.table(values, schema=OUTCOME_SCHEMA)


def commit_part(store: Store, key: str, rows: pa.Table, content: bytes) -> None:
    """Create the part, or find that another pod made it first. Raises BadInput where it holds other images."""
    if not store.create(key, content):
        check_part(store, key, rows)


def check_part(store: Store, key: str, rows: pa.Table) -> None:
    """Make sure that the part which is there holds the images of these rows. Raises BadInput."""
    require_same_images(store.uri_of(key), read_outcomes(store, key, ["image_id"]), rows)


def require_same_images(where: str, there: PartOutcomes, rows: pa.Table) -> None:
    """Raise BadInput unless the part holds exactly the images of these rows."""
    if there.table["image_id"].combine_chunks() != rows["image_id"].combine_chunks():
        raise BadInput(
            f"{where}: holds the images of another plan. Choose another run_id or output."
        )


def read_outcomes(store: Store, key: str, columns: Sequence[str]) -> PartOutcomes:
    """Read a part's metadata and none of its images. Raises Missing, or BadInput where it is damaged."""
    with store.open(key) as file:
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            table = parquet.read(columns=list(columns), use_threads=False)
            there = _offsets_from_footer(parquet)
        except (*DAMAGE_ERRORS, KeyError) as error:
            if is_storage_error(error):
                raise
            raise damage_error(store.uri_of(key), error) from error
    return PartOutcomes(table, there)


def parse_offsets(content: bytes, where: str) -> pa.Array:
    """Where each image's bytes begin in a part that was read whole; null where there is none. Raises BadInput."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            return _offsets_from_footer(parquet)
    except (*DAMAGE_ERRORS, KeyError) as error:
        raise damage_error(where, error) from error


def _offsets_from_footer(parquet: pq.ParquetFile) -> pa.Array:
    told = json.loads((parquet.metadata.metadata or {})[OFFSETS_METADATA])
    places = np.array([-1 if offset is None else offset for offset in told], np.int64)
    return pa.array(
        places, mask=places < 0
    )  # of a list with a None, each would look for pandas, for milliseconds


def _part_table(rows: pa.Table, images: Sequence[EncodedImage]) -> pa.Table:
    ordered = sorted(images, key=lambda image: image.index_in_part)
    names = rows["image_id"].to_pylist()
    files = [
        None if image.content is None else {"bytes": image.content, "path": f"{name}{image.suffix}"}
        for name, image in zip(names, ordered, strict=True)
    ]
    said = join_outcome(rows, outcome_table(images))
    schema = pa.schema([IMAGE_FIELD, *said.schema], metadata={"huggingface": HUGGINGFACE_METADATA})
    return pa.Table.from_arrays([pa.array(files, IMAGE_FIELD.type), *said.columns], schema=schema)


def _part_options(schema: pa.Schema) -> dict[str, object]:
    plain = {"image.bytes", "image.path"}
    others = [name for name in schema.names if name != IMAGE_FIELD.name]
    return {
        **parquet_options(schema),
        "compression": {**dict.fromkeys(plain, "none"), **dict.fromkeys(others, "zstd")},
        "write_statistics": others,
    }


def _find_offsets(written: bytes, images: Sequence[EncodedImage]) -> Iterator[int | None]:
    """Where each image's bytes begin in what was written so far."""
    position = 0
    for image in sorted(images, key=lambda image: image.index_in_part):
        if image.content is None:
            yield None
            continue
        position = written.index(image.content, position)
        yield position
        position += len(image.content)


@dataclass(frozen=True, slots=True)
class PartIndex:
    """What a part says of its images: the plan's columns, what became of each, and where its bytes begin."""

    table: pa.Table
    offsets: list[int | None]

    @property
    def rows(self) -> list[PartRow]:
        """What is told of each image."""
        rows: list[PartRow] = self.table.select(
            ["image_id", "width", "height", *OUTCOME_SCHEMA.names]
        ).to_pylist()
        return rows


@dataclass(frozen=True, slots=True)
class Part:
    """A part to be: the name of the object whose presence says that it is there, and its image rows."""

    key: str
    rows: pa.Table


def parse_part_index(content: bytes, part: Part, where: str) -> PartIndex:
    """The index in these bytes. Raises BadInput where it is damaged, or not of this part's rows."""
    offsets = parse_offsets(content, where).to_pylist()
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            if len(offsets) == part.rows.num_rows and matches_rows(parquet, part.rows):
                return PartIndex(
                    parquet.read(use_threads=False).replace_schema_metadata(None), offsets
                )
    except DAMAGE_ERRORS as error:
        raise damage_error(where, error) from error
    raise BadInput(
        f"{where}: holds other images than were planned. Choose another run_id or output."
    )
