"""Images that were taken down: their ids, in numbered tables of the run that are never changed.

These decide. Whatever a part holds, an image with such an id has the status `forgotten`: no reader
gets it, no retry makes it again, and a process that makes its part again stores none of its bytes.
"""

from collections.abc import Container, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.runs.account import count_entries
from imagekiln.steps.runs.added_columns import AddedFields
from imagekiln.steps.runs.formats import PartFormat
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.keys import forgotten_key
from imagekiln.steps.runs.parts import Part, read_outcomes
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
    read_column,
    to_parquet,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

ID_SCHEMA = pa.schema([pa.field("image_id", pa.string())])
NO_IDS = pa.array([], pa.string())
# `part` still says which part has the row.
EMPTIED_COLUMNS = tuple(
    field.name
    for field in (*OUTCOME_SCHEMA, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA)
    if field.name not in ("status", "part")
)


def read_forgotten(store: Store, plan: Plan) -> pa.Array:
    """The ids of the images of a run that were taken down; `store` may be that of a round.

    Raises BadInput where a table is damaged, TryAgain.
    """
    if plan.round:
        parent, _, _ = store.uri.rpartition("/")
        store = open_store(parent or ".")
    return read_forgotten_ids(store)


def read_left_out(store: Store, plan: Plan) -> frozenset[str]:
    """The ids of images that do not compete: those taken down before the round was planned.

    Of an image that is taken down later, it is no other candidate that wins.
    """
    return frozenset(read_forgotten_ids(store).to_pylist() if plan.round else ())


def read_forgotten_ids(store: Store) -> pa.Array:
    """The ids in all tables of a folder."""
    count = count_entries(store, forgotten_key)
    return _read_tables(store, count)


def _read_tables(store: Store, count: int) -> pa.Array:
    image_ids = NO_IDS
    for number in range(count):
        key = forgotten_key(number)
        further = read_column(store, key, "image_id")
        image_ids = pa.concat_arrays([image_ids, further])
    return image_ids.unique()


def add_forgotten(store: Store, image_ids: pa.Array) -> None:
    """Write down those of these ids that no table has, in one of their own. Raises TryAgain."""
    while True:
        number = count_entries(store, forgotten_key)
        known = _read_tables(store, number)
        is_new = pc.invert(pc.is_in(image_ids, known))
        new = image_ids.filter(is_new)
        if not len(new):
            return
        # Another may have the number, or this one after an answer was lost: its table tells.
        if store.create(forgotten_key(number), to_parquet(pa.table([new], schema=ID_SCHEMA))):
            return


def iter_stored_images(
    store: Store, part_format: PartFormat, part: Part, image_ids: Container[str]
) -> Iterator[str]:
    """The ids of those of these images that a part still holds. Raises BadInput on damage.

    A late process may have left the file or the sidecar of one, although the part says otherwise.
    """
    statuses: dict[str, str] = {}
    if store.exists(part.key):
        outcomes = read_outcomes(store, part.key, ["image_id", "status"]).table
        stored_ids = outcomes["image_id"].to_pylist()
        stored_statuses = outcomes["status"].to_pylist()
        statuses = dict(zip(stored_ids, stored_statuses, strict=True))
    planned_ids = part.rows["image_id"].to_pylist()
    for index, image_id in enumerate(planned_ids):
        if image_id not in image_ids:
            continue
        has_status = statuses.get(image_id, FORGOTTEN_STATUS) != FORGOTTEN_STATUS
        if has_status or part_format.has_leftovers(store, part, index):
            yield image_id


def forget_rows(manifest: pa.Table, image_ids: pa.Array, added: AddedFields) -> pa.Table:
    """The manifest, with nothing but the status of what became of the images with these ids."""
    if not len(image_ids):
        return manifest
    is_forgotten = pc.is_in(manifest["image_id"], image_ids)
    if not pc.any(is_forgotten).as_py():
        return manifest
    status = pc.if_else(is_forgotten, FORGOTTEN_STATUS, manifest["status"])
    manifest = _replace_column(manifest, "status", status)
    added_names = [field.name for field in added]
    for name in (*EMPTIED_COLUMNS, *added_names):
        if name in manifest.column_names:
            column = manifest[name]
            nulls = pa.nulls(len(column), column.type)
            values = pc.if_else(is_forgotten, nulls, column)
            manifest = _replace_column(manifest, name, values)
    return manifest.combine_chunks()


def _replace_column(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    schema = table.schema
    index = schema.get_field_index(name)
    field = schema.field(index)
    return table.set_column(index, field, values)
