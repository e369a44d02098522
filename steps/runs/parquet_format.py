"""The format `parquet`: a part is one Parquet object that holds its images.

The column `image` comes first and is neither compressed nor dictionary-encoded, so that the bytes
of each image are contiguous: with the offset and the size in the manifest, one ranged read fetches
an image without a Parquet reader. The object commits the part, so a killed writer leaves nothing.

A row is an image: who loads the files of a run gets no row without one. What became of the others
that were planned is in the metadata of the object, from which the manifest has it.
"""

import io
import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.output import Encoding, is_lossless
from imagekiln.steps.runs.added_columns import AddedFields, outcome_schema
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, EncodedImage
from imagekiln.steps.runs.integrity import CheckResult, check_failure, check_image_bytes
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.parts import (
    RECORD_COLUMNS,
    ImageRecord,
    Part,
    commit_part,
    emptied_outcome,
    image_records,
    images_metadata,
    is_to_be_emptied,
    join_outcome,
    matches_rows,
    outcome_table,
    read_part,
)
from imagekiln.steps.runs.tables import (
    IMAGE_FIELD,
    parquet_options,
    parse_parquet,
    read_whole,
)
from imagekiln.steps.storage.store import Store

# Hugging Face datasets reads this to decode the column as images.
HUGGINGFACE_METADATA = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
IMAGE_LEAVES = ("image.bytes", "image.path")
CHECK_BATCH_ROWS = 4  # a check holds the bytes of so many images beside those of the part


class StoredFile(TypedDict):
    """An image as the column `image` has it: the bytes of its file, and its name."""

    bytes: bytes
    path: str


@dataclass(frozen=True, slots=True)
class PackedParquet:
    """A part as one Parquet object."""

    part: Part
    content: bytes

    def commit(self, store: Store) -> bool:
        """Create the part; False where another process already did."""
        return commit_part(store, self.part.key, self.part.rows, self.content)


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Parts as Parquet objects with their images."""

    encoding: Encoding
    has_image_files: ClassVar[bool] = False

    def commit_key(self, shard_number: int, part_number: int) -> str:
        """The key of the part itself."""
        return part_key(shard_number, part_number)

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedParquet:
        """Pack a part's images, in any order."""
        content = part_to_parquet(part.rows, images, part.added)
        return PackedParquet(part, content)

    def recover(self, store: Store, part: Part) -> bool:  # noqa: ARG002  # as in every format
        """False: without its commit, a part has no images."""
        return False

    def object_keys(self, part: Part) -> list[str]:
        """The part itself, for each image."""
        return [part.key] * part.rows.num_rows

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read the part, and decode each of its images."""
        where = store.uri_of(part.key)
        try:
            content = store.read(part.key)
            return self._check_content(content, part, where)
        except BadInput as error:
            images = part.rows.num_rows
            return check_failure(error, images)

    def empty(self, store: Store, part: Part, image_ids: Container[str]) -> bool:
        """Replace the part without the bytes of the images with these ids."""
        if not store.exists(part.key):
            return False
        where = store.uri_of(part.key)
        content = store.read(part.key)
        with parse_parquet(content, where) as parquet:
            images = read_whole(parquet, [IMAGE_FIELD.name])[IMAGE_FIELD.name]
            stored = iter(images.to_pylist())
            columns = ["image_id", *outcome_schema(part.added).names]
            outcomes = read_part(parquet, columns, part.added)
        if not is_to_be_emptied(outcomes.table, image_ids):
            return False

        outcome = emptied_outcome(outcomes.table, image_ids, part.added)
        files = [next(stored) if offset.is_valid else None for offset in outcomes.offsets]
        statuses = outcome["status"].to_pylist()
        kept = [
            None if status == FORGOTTEN_STATUS else file
            for status, file in zip(statuses, files, strict=True)
        ]
        emptied = _write_part(part.rows, outcome, kept)
        store.replace(part.key, emptied)
        return True

    def has_leftovers(
        self,
        store: Store,  # noqa: ARG002  # as in every format
        part: Part,  # noqa: ARG002
        index_in_part: int,  # noqa: ARG002
    ) -> bool:
        """False: all of an image is in the parts."""
        return False

    def metadata_tables(
        self,
        manifest: pa.Table,  # noqa: ARG002  # as in every format
    ) -> Iterator[tuple[str, pa.Table]]:
        """None: readers find everything in the parts."""
        return iter(())

    def _check_content(self, content: bytes, part: Part, where: str) -> CheckResult:
        images = part.rows.num_rows
        with parse_parquet(content, where) as parquet:
            is_planned = matches_rows(parquet, part, [IMAGE_FIELD])
            if not is_planned or not _has_plain_images(parquet):
                return check_failure(f"{where}: holds other images than were planned", images)
            result = CheckResult(images)
            offsets = read_part(parquet, ["image_id"]).offsets.drop_null()
            stored = zip(_iter_images(parquet), offsets.to_pylist(), strict=True)
            for (record, image), offset in stored:
                result += self._check_image(record, image, content, offset, where)
            return result

    def _check_image(
        self, record: ImageRecord, image: bytes, content: bytes, offset: int, where: str
    ) -> CheckResult:
        end = offset + (record.byte_size or 0)
        if record.status != "ok" or image != content[offset:end]:
            return check_failure(f"{where}: image {record.image_id} is not where the footer says")
        lossless = is_lossless(self.encoding)
        return check_image_bytes(record, image, where, lossless=lossless)


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
            files.append({"bytes": image.content, "path": f"{image_id}{image.suffix}"})
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


def _has_plain_images(parquet: pq.ParquetFile) -> bool:
    """Whether images are as large in memory as in the object, which compression would hide."""
    metadata = parquet.metadata
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            is_image = column.path_in_schema in IMAGE_LEAVES
            if is_image and column.compression != "UNCOMPRESSED":
                return False
    return True


def _iter_images(parquet: pq.ParquetFile) -> Iterator[tuple[ImageRecord, bytes]]:
    columns = [IMAGE_FIELD.name, *RECORD_COLUMNS]
    batches = parquet.iter_batches(
        CHECK_BATCH_ROWS,
        columns=columns,
        use_threads=False,
    )
    for batch in batches:
        records = image_records(batch)
        images = batch[IMAGE_FIELD.name].to_pylist()
        for record, image in zip(records, images, strict=True):
            yield record, image["bytes"]
