"""Parts: images of one slice of a shard, committed as one Parquet object or not at all.

The column `image` comes first and is neither compressed nor dictionary-encoded, so the bytes of
each image are contiguous. With the offset and size in the manifest, one ranged read fetches an
image without a Parquet reader. Creating the object commits the part, so a killed writer leaves
nothing behind.

Each row has an image, also for readers that load the Parquet files directly. The metadata of the
object has the offset of each image, and the outcomes of planned images without one.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.manifest import forget_rows
from imagekiln.steps.runs.tables import (
    IMAGE_FIELD,
    IMAGE_ROW_SCHEMA,
    AddedFields,
    have_same_rows,
    open_parquet,
    outcome_schema,
    parquet_options,
    parse_parquet,
    read_whole,
)
from imagekiln.steps.runtime.metrics import PARTS
from imagekiln.steps.storage.store import Store

# Offset of each image, or the outcome of a planned image without one.
IMAGES_METADATA = "imagekiln.images"
# Hugging Face datasets reads this to decode the column as images.
HUGGINGFACE_METADATA = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
IMAGE_LEAVES = ("image.bytes", "image.path")


@dataclass(frozen=True, slots=True)
class Part:
    """A planned part: the key of the object that commits it, its image rows, and added columns."""

    key: str
    rows: pa.Table
    added: AddedFields = ()


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A part with its images, ready to be committed."""

    part: Part
    content: bytes

    def commit(self, store: Store) -> bool:
        """Create the part. Return False if another process already did.

        Raises BadInput if the existing part is damaged or belongs to another plan.
        """
        is_first = store.create(self.part.key, self.content)
        if not is_first:
            check_part(store, self.part)
        PARTS.add(result="committed" if is_first else "already_there")
        return is_first


@dataclass(frozen=True, slots=True)
class PartOutcomes:
    """Outcomes stored in a part, in the order of its rows, without the bytes of images.

    An offset is null if there is no image.
    """

    table: pa.Table
    offsets: pa.Array


def pack_part(part: Part, images: Sequence[EncodedImage]) -> PackedPart:
    """Pack images into a part. Equal images in any order give equal bytes."""
    return PackedPart(part, part_to_parquet(part.rows, images, part.added))


def part_to_parquet(
    rows: pa.Table, images: Sequence[EncodedImage], added: AddedFields = ()
) -> bytes:
    """Write a part as Parquet. Equal images in any order give equal bytes."""
    ordered = sorted(images, key=lambda image: image.index_in_part)
    image_ids = rows["image_id"].to_pylist()
    files: list[dict[str, object] | None] = []
    for image_id, image in zip(image_ids, ordered, strict=True):
        name = f"{image_id}{image.suffix}"
        if image.content is None:
            files.append(None)
        else:
            files.append({"bytes": image.content, "path": name})
    outcomes = [_outcome(image) for image in ordered]
    outcome = pa.Table.from_pylist(
        outcomes,
        schema=outcome_schema(added),
    )
    return _write_part(rows, outcome, pa.array(files, IMAGE_FIELD.type))


def _outcome(image: EncodedImage) -> dict[str, object]:
    """Return the outcome of an image as a row. Marks and measures are set only if it is ok."""
    outcome: dict[str, object] = {
        "status": image.status,
        "error": image.error,
        "byte_size": None if image.content is None else len(image.content),
        "sha256": image.sha256,
        "pixels_sha256": image.pixels_sha256,
        "marks": [],
        **image.scores,
        **image.captions,
        RANK_COLUMN: image.candidate_rank,
    }
    if image.quality is not None:
        measures = image.quality.measures
        outcome |= {
            "marks": list(image.quality.failed_gates),
            "marks_reason": image.quality.reason,
            "contrast": measures.contrast,
            "saturation": measures.saturation,
            "phash": measures.phash,
        }
    return outcome


def _write_part(rows: pa.Table, outcome: pa.Table, files: pa.StructArray) -> bytes:
    """Write image rows with their outcomes and files. A file is null if there is no image."""
    is_stored = files.is_valid()
    outcomes = join_outcome(rows, outcome)
    stored = outcomes.filter(is_stored)
    lost = outcomes.filter(pc.invert(is_stored))
    lost = lost.select(["image_id", *outcome.column_names])
    images = files.drop_null()
    schema = image_table_schema(stored.schema)
    table = pa.Table.from_arrays([images, *stored.columns], schema=schema)
    options = image_table_options(schema)
    one_row_group = table.num_rows
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        if table.num_rows:  # some readers fail at a row group without rows
            writer.write_table(table, row_group_size=one_row_group)
        contents = images.field("bytes").to_pylist()
        offsets = _find_offsets(sink.getvalue(), contents)
        losses = iter(lost.to_pylist())
        entries = []
        for has_file in is_stored.to_pylist():
            entry = next(offsets if has_file else losses)
            entries.append(entry)
        metadata = {IMAGES_METADATA: json.dumps(entries)}
        writer.add_key_value_metadata(metadata)
    return sink.getvalue()


def _find_offsets(written: bytes, contents: Iterable[bytes]) -> Iterator[int]:
    """Yield the offset of each image in the bytes written so far."""
    position = 0
    for content in contents:
        position = written.index(content, position)
        yield position
        position += len(content)


def join_outcome(rows: pa.Table, outcome: pa.Table) -> pa.Table:
    """Add the columns of the outcomes to the image rows."""
    fields = [*rows.schema, *outcome.schema]
    columns = [*rows.columns, *outcome.columns]
    schema = pa.schema(fields)
    return pa.Table.from_arrays(columns, schema=schema)


def image_column(contents: Sequence[bytes], names: Sequence[str]) -> pa.Array:
    """Build the image column: the bytes of each file, and its name."""
    columns = [
        pa.array(contents, pa.binary()),
        pa.array(names, pa.string()),
    ]
    return pa.StructArray.from_arrays(
        columns,
        fields=list(IMAGE_FIELD.type),
    )


def image_table_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of these rows with an image column."""
    return pa.schema(
        [IMAGE_FIELD, *rows],
        metadata={"huggingface": HUGGINGFACE_METADATA},
    )


def image_table_options(schema: pa.Schema) -> dict[str, object]:
    """Return Parquet writer options that leave the bytes of images as they are."""
    others = [name for name in schema.names if name != IMAGE_FIELD.name]
    compression = dict.fromkeys(others, "zstd") | dict.fromkeys(IMAGE_LEAVES, "none")
    return {
        **parquet_options(schema),
        "compression": compression,
        "write_statistics": others,
    }


def reduce_part(store: Store, part: Part, key: str, image_ids: pa.Array) -> bool:
    """Create `key` with the content of a part, except the images with these ids.

    Returns False if the part is buried, because another part already has its images. Raises
    Missing, BadInput on damage, TryAgain.
    """
    where = store.uri_of(part.key)
    schema = outcome_schema(part.added)
    with parse_parquet(store.read(part.key), where) as parquet:
        outcomes = read_part(parquet, ["image_id", *schema.names], part.added)
        files = read_whole(parquet, [IMAGE_FIELD.name])
    if not len(outcomes.offsets):
        return False
    require_same_images(where, outcomes, part.rows)

    left = forget_rows(
        outcomes.table,
        image_ids,
        part.added,
    )
    left = left.select(schema.names).cast(schema)
    is_forgotten = pc.is_in(outcomes.table["image_id"], image_ids)
    has_file = outcomes.offsets.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(
        has_file.cumsum() - 1,
        mask=~has_file | is_forgotten.to_numpy(),
    )
    images = files[IMAGE_FIELD.name].combine_chunks()
    content = _write_part(part.rows, left, images.take(places))
    store.create(key, content)
    return True


def bury(store: Store, keys: Iterable[str], row_schema: pa.Schema, added: AddedFields) -> None:
    """Replace parts by an empty one with the same columns. Raises TryAgain.

    The names stay taken, so a process that resumes late cannot create images under them.
    """
    nothing = part_to_parquet(row_schema.empty_table(), [], added)
    for key in keys:
        store.replace(key, nothing)


def read_part(
    parquet: pq.ParquetFile, columns: Sequence[str] | None, added: AddedFields = ()
) -> PartOutcomes:
    """Read these columns of an open part, or all, for each of its planned images in order.

    Planned images without a row in the object have only ids and outcomes. If there are any,
    `columns` may name no others. Raises one of DAMAGE_ERRORS.
    """
    table = read_whole(parquet, columns)
    table = table.replace_schema_metadata(None)
    metadata = parquet.metadata.metadata
    lost = []
    is_lost = []
    offsets = []
    for entry in json.loads(metadata[IMAGES_METADATA.encode()]):
        has_image = isinstance(entry, int)
        if not has_image:
            lost.append(entry)
        is_lost.append(not has_image)
        offsets.append(entry if has_image else 0)

    if lost:
        schema = pa.schema([IMAGE_ROW_SCHEMA.field("image_id"), *outcome_schema(added)])
        others = pa.Table.from_pylist(lost, schema)
        others = others.select(table.column_names)
        both = pa.concat_tables([table, others])
        # Both keep their rows in order, one after the other.
        order = np.argsort(is_lost, kind="stable")
        places = pa.array(np.argsort(order))
        table = both.take(places).combine_chunks()

    # `pa.array` of a list with a None imports pandas first, which takes milliseconds.
    numbers = np.array(offsets, np.int64)
    return PartOutcomes(
        table,
        offsets=pa.array(numbers, mask=np.array(is_lost, bool)),
    )


def matches_rows(parquet: pq.ParquetFile, part: Part) -> bool:
    """Return whether an object has the planned columns and rows of a part."""
    rows = part.rows
    outcome = outcome_schema(part.added)
    planned = pa.schema([IMAGE_FIELD, *rows.schema, *outcome])
    if not parquet.schema_arrow.equals(planned):
        return False
    outcomes = read_part(parquet, ["image_id"])
    if not outcomes.table["image_id"].equals(rows["image_id"]):
        return False
    stored = read_whole(parquet, rows.column_names)
    is_stored = outcomes.offsets.is_valid()
    return have_same_rows(stored, rows.filter(is_stored))


def read_outcomes(
    store: Store, key: str, columns: Sequence[str], added: AddedFields = ()
) -> PartOutcomes:
    """Read columns of a part and these added ones, as `read_part` does, but no images.

    Raises Missing, or BadInput if the part is damaged.
    """
    with open_parquet(store, key) as parquet:
        added_names = [field.name for field in added]
        return read_part(parquet, [*columns, *added_names], added)


def check_part(store: Store, part: Part) -> None:
    """Raise BadInput unless the existing part holds exactly its planned images, or none.

    A part without images was buried: another part has its images, and its name stays taken.
    """
    outcomes = read_outcomes(store, part.key, ["image_id"])
    if len(outcomes.offsets):
        require_same_images(store.uri_of(part.key), outcomes, part.rows)


def require_same_images(where: str, outcomes: PartOutcomes, rows: pa.Table) -> None:
    """Raise BadInput unless the outcomes belong to exactly the images of these rows."""
    if not outcomes.table["image_id"].equals(rows["image_id"]):
        raise BadInput(
            f"{where}: holds the images of another plan. Choose another run_id or output."
        )
