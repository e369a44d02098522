"""The bytes of a part: one Parquet object that holds its images. How to write and read it back.

The column `image` comes first and is neither compressed nor dictionary-encoded, so that the bytes
of each image are contiguous: with the offset and the size in the manifest, one ranged read fetches
an image without a Parquet reader. The object commits the part, so a killed writer leaves nothing.

A row is an image: who loads the files of a run gets no row without one. What became of the others
that were planned is in the metadata of the object, from which the manifest has it.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.runs.image import FORGOTTEN_STATUS, EncodedImage
from imagekiln.steps.runs.manifest import forget_rows
from imagekiln.steps.runs.parts import (
    Part,
    commit_part,
    images_metadata,
    join_outcome,
    outcome_table,
    read_part,
    require_same_images,
)
from imagekiln.steps.runs.tables import (
    IMAGE_FIELD,
    AddedFields,
    outcome_schema,
    parquet_options,
    parse_parquet,
    read_whole,
)
from imagekiln.steps.storage.store import Store

# Hugging Face datasets reads this to decode the column as images.
HUGGINGFACE_METADATA = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
IMAGE_LEAVES = ("image.bytes", "image.path")


class StoredFile(TypedDict):
    """An image as the column `image` has it: the bytes of its file, and its name."""

    bytes: bytes
    path: str


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A part with its images, ready to be committed."""

    part: Part
    content: bytes

    def commit(self, store: Store) -> bool:
        """Create the part; False if another process already did.

        Raises BadInput if the part that exists belongs to another plan, or is damaged.
        """
        return commit_part(store, self.part.key, self.part.rows, self.content)


def pack_part(part: Part, images: Sequence[EncodedImage]) -> PackedPart:
    """Pack a part's images, in any order. The same images give the same bytes."""
    return PackedPart(part, part_to_parquet(part.rows, images, part.added))


def reduce_part(store: Store, part: Part, key: str, image_ids: pa.Array) -> bool:
    """Create `key` with what a part holds but for the images with these ids.

    False if the part is buried: its images are in another one already. Raises Missing, BadInput on
    damage, TryAgain.
    """
    where = store.uri_of(part.key)
    with parse_parquet(store.read(part.key), where) as parquet:
        outcome = outcome_schema(part.added)
        columns = ["image_id", *outcome.names]
        outcomes = read_part(parquet, columns, part.added)
        if not len(outcomes.offsets):
            return False
        require_same_images(where, outcomes, part.rows)
        table = read_whole(parquet, [IMAGE_FIELD.name])
        images = table[IMAGE_FIELD.name].to_pylist()
        stored = iter(images)

    left = forget_rows(outcomes.table, image_ids, part.added)
    emptied = left.select(outcome.names).cast(outcome)
    statuses = emptied["status"].to_pylist()
    files: list[StoredFile | None] = []
    for status, offset in zip(statuses, outcomes.offsets, strict=True):
        file = next(stored) if offset.is_valid else None
        if status == FORGOTTEN_STATUS:
            file = None
        files.append(file)
    content = _write_part(part.rows, emptied, files)
    store.create(key, content)
    return True


def bury(store: Store, keys: Iterable[str], row_schema: pa.Schema, added: AddedFields) -> None:
    """Replace parts by one without rows, whose columns are those of all parts. Raises TryAgain.

    Their names stay taken: a process that was stopped for long creates no image under one.
    """
    nothing = part_to_parquet(row_schema.empty_table(), [], added)
    for key in keys:
        store.replace(key, nothing)


def part_to_parquet(
    rows: pa.Table, images: Sequence[EncodedImage], added: AddedFields = ()
) -> bytes:
    """A part with its images, in any order. The same rows and images give the same bytes."""
    ordered = sorted(images, key=lambda image: image.index_in_part)
    image_ids = rows["image_id"].to_pylist()
    files: list[StoredFile | None] = []
    for image_id, image in zip(image_ids, ordered, strict=True):
        if image.content is None:
            files.append(None)
        else:
            name = f"{image_id}{image.suffix}"
            files.append({"bytes": image.content, "path": name})
    return _write_part(rows, outcome_table(ordered, added), files)


def _write_part(rows: pa.Table, outcome: pa.Table, files: Sequence[StoredFile | None]) -> bytes:
    images = pa.array(files, IMAGE_FIELD.type)
    outcomes = join_outcome(rows, outcome)
    stored = outcomes.filter(images.is_valid())
    columns = [images.drop_null(), *stored.columns]
    schema = image_table_schema(stored.schema)
    table = pa.Table.from_arrays(columns, schema=schema)
    options = image_table_options(table.schema)
    one_row_group = max(1, table.num_rows)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        if table.num_rows:  # some readers fail at a row group without rows
            writer.write_table(table, row_group_size=one_row_group)
        offsets = _find_offsets(sink.getvalue(), files)
        names = ["image_id", *outcome.column_names]
        entries = [
            row if offset is None else offset
            for offset, row in zip(offsets, outcomes.select(names).to_pylist(), strict=True)
        ]
        writer.add_key_value_metadata(images_metadata(entries))
    return sink.getvalue()


def image_column(contents: Sequence[bytes], names: Sequence[str]) -> pa.Array:
    """Images as a column: the bytes of each file, and its name."""
    columns = [
        pa.array(contents, pa.binary()),
        pa.array(names, pa.string()),
    ]
    return pa.StructArray.from_arrays(
        columns,
        fields=list(IMAGE_FIELD.type),
    )


def image_table_schema(rows: pa.Schema) -> pa.Schema:
    """The schema of a table with an image beside each of these rows."""
    return pa.schema(
        [IMAGE_FIELD, *rows],
        metadata={"huggingface": HUGGINGFACE_METADATA},
    )


def image_table_options(schema: pa.Schema) -> dict[str, object]:
    """The writer's options for a table with images, whose bytes stay as they are."""
    others = [name for name in schema.names if name != IMAGE_FIELD.name]
    compression = dict.fromkeys(others, "zstd")
    compression |= dict.fromkeys(IMAGE_LEAVES, "none")
    return {
        **parquet_options(schema),
        "compression": compression,
        "write_statistics": others,
    }


def _find_offsets(written: bytes, files: Sequence[StoredFile | None]) -> Iterator[int | None]:
    """The offset of each image in what the writer has written so far."""
    position = 0
    for file in files:
        if file is None:
            yield None
            continue
        position = written.index(file["bytes"], position)
        yield position
        position += len(file["bytes"])
