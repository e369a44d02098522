"""The manifest: a row for each planned image of a shard, with its result.

An image that was taken down has the status `forgotten`. Readers skip it and retries do not make it
again. A commit names the table of these ids.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import Incomplete
from imagekiln.steps.runs.commits import Commit, digest_of
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.keys import IMAGE_ID_PATTERN, forgotten_key, manifest_key
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
    AddedFields,
    open_parquet,
    parse_parquet,
    read_column,
    read_whole,
    to_parquet,
)
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store

ID_SCHEMA = pa.schema([pa.field("image_id", pa.string())])
NO_IDS = pa.array([], pa.string())
# `part` still names the part that has the row.
EMPTIED_COLUMNS = tuple(
    field.name
    for field in (*OUTCOME_SCHEMA, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA)
    if field.name not in ("status", "part")
)


def find_manifest(store: Store, commit: Commit, number: int) -> str:
    """Return the key of a shard's manifest. Raises Incomplete if the run was never aggregated."""
    if number < len(commit.manifests):
        return commit.manifests[number]
    raise Incomplete(
        f"{store.uri}: has no manifest, so its images cannot be read yet. Run its job to the end, "
        f"or `{format_command('aggregate', store.uri)}`, first."
    )


def read_manifest(
    store: Store, key: str, images: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read the manifest of a shard with this number of images, or these columns in this order.

    Raises Missing, or BadInput if it is damaged.
    """
    if columns is None:  # one request
        opened = parse_parquet(store.read(key), store.uri_of(key))
    else:
        opened = open_parquet(store, key)
    with opened as parquet:
        manifest = read_whole(parquet, columns)
        _check_manifest(manifest, images)
        return manifest if columns is None else manifest.select(list(columns))


def write_manifest(
    store: Store, number: int, manifest: pa.Table, counted: Sequence[str] = ()
) -> str:
    """Write the manifest of a shard for the next commit, and return its key. Raises TryAgain.

    A manifest among `counted` exists already and is not written again.
    """
    content = to_parquet(manifest)
    key = manifest_key(number, digest_of(content))
    if key not in counted[number : number + 1]:
        store.create(key, content)
    return key


def _check_manifest(manifest: pa.Table, images: int) -> None:
    """Raise ValueError if no shard of this size has such a manifest.

    Ids become file names, so they are checked even if the manifest is untrusted.
    """
    if manifest.num_rows != images:
        raise ValueError(f"it has {manifest.num_rows} rows for {images} images")
    if "image_id" in manifest.column_names:
        is_id = pc.match_substring_regex(manifest["image_id"], IMAGE_ID_PATTERN)
        if not pc.all(pc.fill_null(is_id, False), min_count=0).as_py():
            raise ValueError("the column image_id has values that no run has")


def read_held_ids(store: Store, key: str) -> pa.Table:
    """Read the ids of a manifest that no later run makes: images that are ok or taken down."""
    with open_parquet(store, key) as parquet:
        rows = read_whole(parquet, ["image_id", "status"])
    is_held = pc.is_in(rows["status"], pa.array(["ok", FORGOTTEN_STATUS]))
    return rows.filter(is_held)


def read_forgotten(store: Store, commit: Commit) -> pa.Array:
    """Read the ids of the images that were taken down. Raises BadInput on damage, TryAgain."""
    if commit.forgotten is None:
        return NO_IDS
    return read_column(store, commit.forgotten, "image_id")


def write_forgotten(store: Store, image_ids: pa.Array) -> str:
    """Write a table of ids, and return its key. Raises TryAgain."""
    content = to_parquet(pa.table([image_ids.unique().sort()], schema=ID_SCHEMA))
    key = forgotten_key(digest_of(content))
    store.create(key, content)
    return key


def forget_rows(manifest: pa.Table, image_ids: pa.Array, added: AddedFields) -> pa.Table:
    """Set the status of these images to `forgotten`, and clear their other results."""
    is_forgotten = pc.is_in(manifest["image_id"], image_ids)
    if not pc.any(is_forgotten).as_py():
        return manifest
    status = pc.if_else(is_forgotten, FORGOTTEN_STATUS, manifest["status"])
    manifest = replace_column(manifest, "status", status)
    added_names = [field.name for field in added]
    for name in (*EMPTIED_COLUMNS, *added_names):
        if name in manifest.column_names:
            column = manifest[name]
            nulls = pa.nulls(len(column), column.type)
            values = pc.if_else(is_forgotten, nulls, column)
            manifest = replace_column(manifest, name, values)
    return manifest.combine_chunks()


def replace_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Replace a column of a table by values of the same type."""
    schema = table.schema
    index = schema.get_field_index(name)
    field = schema.field(index)
    return table.set_column(index, field, values)
