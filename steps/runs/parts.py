"""Parts: the images of one slice of a shard, committed by one Parquet object, whole or not at all.

That object has the outcome of each of the part's image rows, and its metadata has the offset at
which the bytes of each image begin. In the format `parquet` the object holds the images as well,
and its rows are only those with an image, as readers expect of a dataset: the outcomes of the
others are in its metadata. In the other formats it is the index of images that lie in objects of
their own, with a row for each.
"""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.added_columns import AddedFields, outcome_schema
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, EncodedImage
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

# For each image row, the offset of its image, null without one, or all of its outcome where it is
# no row of the object.
IMAGES_METADATA = b"imagekiln.images"
ImageEntry: TypeAlias = int | Mapping[str, object] | None


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
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def image_records(table: pa.Table | pa.RecordBatch) -> list[ImageRecord]:
    """The records in a table that has at least their columns."""
    rows = table.select(list(RECORD_COLUMNS)).to_pylist()
    return [ImageRecord(**row) for row in rows]


def images_metadata(entries: Sequence[ImageEntry]) -> dict[str, str]:
    """The entries of a part's images as metadata of its Parquet object."""
    text = json.dumps(list(entries))
    return {IMAGES_METADATA.decode(): text}


def read_part(
    parquet: pq.ParquetFile, columns: Sequence[str] | None, added: AddedFields = ()
) -> PartOutcomes:
    """These columns of an open part, or all, for each of its image rows in their order.

    A part may have no columns but ids and outcomes of those that are no rows of the object: no
    others may be named then. Raises one of DAMAGE_ERRORS.
    """
    table = read_whole(parquet, columns)
    table = table.replace_schema_metadata(None)
    metadata = parquet.metadata.metadata or {}
    imageless = []
    is_imageless = []
    offsets = []
    for entry in json.loads(metadata[IMAGES_METADATA]):
        if isinstance(entry, dict):
            imageless.append(entry)
        is_imageless.append(isinstance(entry, dict))
        offset = entry if isinstance(entry, int) else -1
        offsets.append(offset)

    if table.num_rows + len(imageless) != len(offsets):
        raise ValueError("its rows are not those that its metadata names")
    if imageless:
        id_field = IMAGE_ROW_SCHEMA.field("image_id")
        fields = [id_field, *outcome_schema(added)]
        others = pa.Table.from_pylist(imageless, pa.schema(fields))
        others = others.select(table.column_names)
        both = pa.concat_tables([table, others])
        # As both have them, one after the other.
        order = np.argsort(is_imageless, kind="stable")
        places = pa.array(np.argsort(order))
        table = both.take(places).combine_chunks()

    # `pa.array` of a list with a None looks for pandas first, which takes milliseconds.
    numbers = np.array(offsets, np.int64)
    is_null = numbers < 0
    return PartOutcomes(table, pa.array(numbers, mask=is_null))


def matches_rows(parquet: pq.ParquetFile, part: Part, leading: Sequence[pa.Field] = ()) -> bool:
    """Whether an object has the columns that were planned of a part, and its rows in them.

    `leading` are the columns that its format puts before those of the rows.
    """
    rows = part.rows
    outcome = outcome_schema(part.added)
    planned = pa.schema([*leading, *rows.schema, *outcome])
    if not parquet.schema_arrow.equals(planned):
        return False
    planned_ids = rows["image_id"]
    outcomes = read_part(parquet, ["image_id"])
    if not outcomes.table["image_id"].equals(planned_ids):
        return False
    stored = read_whole(parquet, rows.column_names)
    is_stored = pc.is_in(planned_ids, stored["image_id"])
    return have_same_rows(stored, rows.filter(is_stored))


def index_to_parquet(rows: pa.Table, outcome: pa.Table, offsets: Sequence[int | None]) -> bytes:
    """A part's index: its rows and outcomes, and where each image begins in its object."""
    table = join_outcome(rows, outcome)
    table = table.replace_schema_metadata(images_metadata(offsets))
    return to_parquet(table)


def parse_part_index(content: bytes, part: Part, where: str) -> PartOutcomes:
    """The index in these bytes, with all columns.

    Raises BadInput where it is damaged, or its rows are not those of the part.
    """
    with parse_parquet(content, where) as parquet:
        if matches_rows(parquet, part):
            return read_part(parquet, None)
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
    require_same_images(store.uri_of(key), outcomes, rows)


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
