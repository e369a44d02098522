"""Parts: the images of one slice of a shard, committed by one Parquet object, whole or not at all.

The object's rows are the images, with what became of them, as readers expect of a dataset. Its
metadata has the offset at which the bytes of each image begin, and the outcomes of the image rows
that have no image.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.tables import (
    IMAGE_FIELD,
    IMAGE_ROW_SCHEMA,
    AddedFields,
    have_same_rows,
    open_parquet,
    outcome_schema,
    read_whole,
)
from imagekiln.steps.runtime.metrics import PARTS
from imagekiln.steps.storage.store import Store

# For each image row, the offset of its image, null without one, or all of its outcome if it is
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
    """The outcomes that a part records, in the order of its rows, without the images' bytes.

    An offset is null if there is no image.
    """

    table: pa.Table
    offsets: pa.Array


def outcome_table(images: Sequence[EncodedImage], added: AddedFields = ()) -> pa.Table:
    """The outcomes of a part's images, in the order of their rows, with these added columns."""
    ordered = sorted(images, key=lambda image: image.index_in_part)
    outcomes = [_outcome(image) for image in ordered]
    return pa.Table.from_pylist(outcomes, schema=outcome_schema(added))


def join_outcome(rows: pa.Table, outcome: pa.Table) -> pa.Table:
    """Image rows side by side with their outcomes."""
    fields = [*rows.schema, *outcome.schema]
    columns = [*rows.columns, *outcome.columns]
    schema = pa.schema(fields)
    return pa.Table.from_arrays(columns, schema=schema)


def images_metadata(entries: Sequence[ImageEntry]) -> dict[str, str]:
    """The entries of a part's images as metadata of its Parquet object."""
    text = json.dumps(list(entries))
    return {IMAGES_METADATA.decode(): text}


def read_part(
    parquet: pq.ParquetFile, columns: Sequence[str] | None, added: AddedFields = ()
) -> PartOutcomes:
    """Read these columns of an open part, or all, for each of its image rows in their order.

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
    column = pa.array(numbers, mask=is_null)
    return PartOutcomes(table, column)


def matches_rows(parquet: pq.ParquetFile, part: Part) -> bool:
    """Tell if an object has the columns that were planned of a part, and its rows in them."""
    rows = part.rows
    outcome = outcome_schema(part.added)
    planned = pa.schema([IMAGE_FIELD, *rows.schema, *outcome])
    if not parquet.schema_arrow.equals(planned):
        return False
    planned_ids = rows["image_id"]
    outcomes = read_part(parquet, ["image_id"])
    if not outcomes.table["image_id"].equals(planned_ids):
        return False
    stored = read_whole(parquet, rows.column_names)
    is_stored = pc.is_in(planned_ids, stored["image_id"])
    return have_same_rows(stored, rows.filter(is_stored))


def read_outcomes(
    store: Store, key: str, columns: Sequence[str], added: AddedFields = ()
) -> PartOutcomes:
    """Read columns of a part and these added ones, and none of its images, as `read_part` does.

    Raises Missing, or BadInput if the part is damaged.
    """
    with open_parquet(store, key) as parquet:
        added_names = [field.name for field in added]
        return read_part(parquet, [*columns, *added_names], added)


def commit_part(store: Store, key: str, rows: pa.Table, content: bytes) -> bool:
    """Create the object that commits a part; False if another process already did.

    Raises BadInput if the part that exists holds other images.
    """
    if store.create(key, content):
        PARTS.add(result="committed")
        return True
    check_part(store, key, rows)
    PARTS.add(result="already_there")
    return False


def check_part(store: Store, key: str, rows: pa.Table) -> None:
    """Raise BadInput unless the part that exists holds exactly the images of these rows.

    Or none at all: its images were moved to another part, and its name is not free.
    """
    outcomes = read_outcomes(store, key, ["image_id"])
    if len(outcomes.offsets):
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
