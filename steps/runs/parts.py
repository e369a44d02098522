"""Parts: the images of one slice of a shard, committed by one Parquet object, whole or not at all.

That object has the outcome of each of the part's image rows, and its metadata has the offset at
which the bytes of each image begin. In the format `parquet` the object holds the images as well,
and its rows are only those with an image, as readers expect of a dataset: the outcomes of the
others are in its metadata. In the other formats it is the index of images that lie in objects of
their own, with a row for each.
"""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.added_columns import AddedFields, outcome_schema
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, EncodedImage
from imagekiln.steps.runs.sidecar import sidecar_lines
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    have_same_rows,
    open_parquet,
    parse_parquet,
    read_whole,
    to_parquet,
)
from imagekiln.steps.runtime.metrics import PARTS
from imagekiln.steps.storage.store import Store

OFFSETS_METADATA = b"imagekiln.offsets"
# A line of JSON for each image row that is no row of the object; absent where all are.
IMAGELESS_METADATA = b"imagekiln.without_image"


@dataclass(frozen=True, slots=True)
class Part:
    """A planned part: the key of the object that commits it, its image rows, and added columns."""

    key: str
    rows: pa.Table
    added: AddedFields = ()


@dataclass(frozen=True, slots=True)
class PartOutcomes:
    """What a part records of its images, in the order of their rows, without their bytes.

    An offset is null where there is no image.
    """

    table: pa.Table
    offsets: pa.Array


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """What a part records of one image: its size in pixels, and that of its file in bytes."""

    image_id: str
    width: int
    height: int
    status: str
    byte_size: int | None
    sha256: str | None
    pixels_sha256: str | None


RECORD_COLUMNS = ImageRecord.__slots__


def outcome_table(images: Sequence[EncodedImage], added: AddedFields = ()) -> pa.Table:
    """The outcomes of a part's images, in the order of their rows, with these added columns."""
    ordered = sorted(images, key=lambda image: image.index_in_part)
    outcomes = [_outcome(image) for image in ordered]
    return pa.Table.from_pylist(outcomes, schema=outcome_schema(added))


def is_to_be_emptied(outcomes: pa.Table, image_ids: Container[str]) -> bool:
    """Whether a part, of which this has ids and statuses, holds one of these images."""
    ids = outcomes["image_id"].to_pylist()
    statuses = outcomes["status"].to_pylist()
    return any(
        image_id in image_ids and status != FORGOTTEN_STATUS
        for image_id, status in zip(ids, statuses, strict=True)
    )


def emptied_outcome(
    outcomes: pa.Table, image_ids: Container[str], added: AddedFields = ()
) -> pa.Table:
    """The outcomes of a part, of which nothing but the status is left of the images named."""
    schema = outcome_schema(added)
    forgotten = EncodedImage(0, FORGOTTEN_STATUS)
    (empty,) = outcome_table([forgotten], added).to_pylist()
    ids = outcomes["image_id"].to_pylist()
    rows = outcomes.select(schema.names).to_pylist()
    emptied = [
        empty if image_id in image_ids else row for image_id, row in zip(ids, rows, strict=True)
    ]
    return pa.Table.from_pylist(emptied, schema=schema)


def join_outcome(rows: pa.Table, outcome: pa.Table) -> pa.Table:
    """Image rows side by side with their outcomes."""
    fields = [*rows.schema, *outcome.schema]
    columns = [*rows.columns, *outcome.columns]
    schema = pa.schema(fields)
    return pa.Table.from_arrays(columns, schema=schema)


def image_records(table: pa.Table | pa.RecordBatch) -> list[ImageRecord]:
    """The records in a table that has at least their columns."""
    rows = table.select(list(RECORD_COLUMNS)).to_pylist()
    return [ImageRecord(**row) for row in rows]


def offsets_metadata(offsets: Sequence[int | None]) -> dict[str, str]:
    """The offsets of a part's images as metadata of its Parquet object."""
    return {OFFSETS_METADATA.decode(): json.dumps(list(offsets))}


def read_offsets(parquet: pq.ParquetFile) -> pa.Array:
    """The offsets in the metadata of a part; null where there is no image.

    Raises one of DAMAGE_ERRORS where there are none.
    """
    metadata = parquet.metadata.metadata or {}
    offsets = json.loads(metadata[OFFSETS_METADATA])
    # `pa.array` of a list with a None looks for pandas first, which takes milliseconds.
    numbers = np.array(
        [-1 if offset is None else offset for offset in offsets],
        np.int64,
    )
    is_null = numbers < 0
    return pa.array(numbers, mask=is_null)


def imageless_metadata(image_ids: pa.ChunkedArray, outcome: pa.Table) -> dict[str, str]:
    """The outcomes of images that are no rows of a part's Parquet object, as its metadata."""
    table = outcome.add_column(0, "image_id", image_ids)
    lines = b"".join(sidecar_lines(table))
    return {IMAGELESS_METADATA.decode(): lines.decode()}


def read_part(
    parquet: pq.ParquetFile, columns: Sequence[str] | None, added: AddedFields = ()
) -> PartOutcomes:
    """These columns of an open part, or all, for each of its image rows in their order.

    Of those without an image, a part may have no columns but their ids and outcomes: no others may
    be named then. Raises one of DAMAGE_ERRORS.
    """
    table = read_whole(parquet, columns)
    table = table.replace_schema_metadata(None)
    offsets = read_offsets(parquet)
    metadata = parquet.metadata.metadata
    lines = metadata.get(IMAGELESS_METADATA)
    if lines is not None:
        imageless = _parse_imageless(lines, table.schema, added)
        table = _in_planned_order(table, imageless, offsets)
    return PartOutcomes(table, offsets)


def _parse_imageless(lines: bytes, schema: pa.Schema, added: AddedFields) -> pa.Table:
    id_field = IMAGE_ROW_SCHEMA.field("image_id")
    fields = [id_field, *outcome_schema(added)]
    rows = []
    for line in lines.splitlines():
        row = json.loads(line)
        rows.append(dict(row))
    table = pa.Table.from_pylist(rows, pa.schema(fields))
    return table.select(schema.names)


def _in_planned_order(images: pa.Table, others: pa.Table, offsets: pa.Array) -> pa.Table:
    """All rows in their order, in which those with an image are those that have an offset."""
    has_image = offsets.is_valid().to_numpy(zero_copy_only=False)
    stored = int(has_image.sum())
    rest = len(offsets) - stored
    if (images.num_rows, others.num_rows) != (stored, rest):
        raise ValueError("its rows are not those that its metadata names")
    # As both tables have them, one after the other.
    order = np.argsort(~has_image, kind="stable")
    places = np.argsort(order)

    both = pa.concat_tables([images, others])
    ordered = both.take(pa.array(places))
    return ordered.combine_chunks()


def matches_rows(
    parquet: pq.ParquetFile,
    rows: pa.Table,
    added: AddedFields = (),
    leading: Sequence[pa.Field] = (),
) -> bool:
    """Whether an object has the columns that were planned of a part, and these rows in them.

    `leading` are the columns that its format puts before those of the rows.
    """
    outcome = outcome_schema(added)
    planned = pa.schema([*leading, *rows.schema, *outcome])
    if not parquet.schema_arrow.equals(planned):
        return False
    if parquet.metadata.num_rows != rows.num_rows:
        return False
    stored = read_whole(parquet, rows.column_names)
    return have_same_rows(stored, rows)


def index_to_parquet(rows: pa.Table, outcome: pa.Table, offsets: Sequence[int | None]) -> bytes:
    """A part's index: its rows and outcomes, and where each image begins in its object."""
    table = join_outcome(rows, outcome)
    table = table.replace_schema_metadata(offsets_metadata(offsets))
    return to_parquet(table)


def parse_part_index(content: bytes, part: Part, where: str) -> PartOutcomes:
    """The index in these bytes, with all columns.

    Raises BadInput where it is damaged, or its rows are not those of the part.
    """
    with parse_parquet(content, where) as parquet:
        outcomes = read_part(parquet, None)
        is_whole = len(outcomes.offsets) == part.rows.num_rows
        if is_whole and matches_rows(parquet, part.rows, part.added):
            return outcomes
    raise BadInput(
        f"{where}: holds other images than were planned. Choose another run_id or output."
    )


def read_outcomes(
    store: Store, key: str, columns: Sequence[str], added: AddedFields = ()
) -> PartOutcomes:
    """Read columns of a part and these added ones, and none of its images, as `read_part` does.

    Raises Missing, or BadInput where the part is damaged.
    """
    with open_parquet(store, key) as parquet:
        added_names = [field.name for field in added]
        return read_part(parquet, [*columns, *added_names], added)


def commit_part(store: Store, key: str, rows: pa.Table, content: bytes) -> bool:
    """Create the object that commits a part; False where another process already did.

    Raises BadInput where the part that exists holds other images.
    """
    if store.create(key, content):
        PARTS.add(result="committed")
        return True
    note_committed(store, key, rows)
    return False


def note_committed(store: Store, key: str, rows: pa.Table) -> None:
    """Count a part that another process has committed. Raises BadInput as `commit_part` does."""
    check_part(store, key, rows)
    PARTS.add(result="already_there")


def check_part(store: Store, key: str, rows: pa.Table) -> None:
    """Raise BadInput unless the part that exists holds exactly the images of these rows."""
    outcomes = read_outcomes(store, key, ["image_id"])
    where = store.uri_of(key)
    require_same_images(where, outcomes, rows)


def require_same_images(where: str, outcomes: PartOutcomes, rows: pa.Table) -> None:
    """Raise BadInput unless the outcomes are of exactly the images of these rows."""
    stored_ids = outcomes.table["image_id"].combine_chunks()
    planned_ids = rows["image_id"].combine_chunks()
    if stored_ids != planned_ids:
        raise BadInput(
            f"{where}: holds the images of another plan. Choose another run_id or output."
        )


def _outcome(image: EncodedImage) -> dict[str, object]:
    """One row of the outcomes. An image that is not ok has no marks, and no measures."""
    size = None if image.content is None else len(image.content)
    outcome: dict[str, object] = {
        "status": image.status,
        "error": image.error,
        "byte_size": size,
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
