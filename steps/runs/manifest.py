"""Reading the manifest: a row for each planned image of a shard, with what became of it."""

from collections.abc import Sequence

import pyarrow as pa

from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.row_checks import (
    OUTCOME_BOUNDS,
    OUTCOME_PATTERNS,
    REQUIRED_COLUMNS,
    check_image_rows,
    check_outcomes,
)
from imagekiln.steps.runs.tables import open_parquet, parse_parquet, read_whole, require_columns
from imagekiln.steps.storage.store import Store

MANIFEST_COLUMNS = (*REQUIRED_COLUMNS, "status", *OUTCOME_BOUNDS, *OUTCOME_PATTERNS)


def read_manifest(store: Store, number: int, images: int) -> pa.Table:
    """The manifest of a shard with so many images.

    Raises Missing, or BadInput where it is damaged, or names objects that are not of the run.
    """
    key = manifest_key(number)
    with parse_parquet(store.read(key), store.uri_of(key)) as parquet:
        require_columns(parquet.schema_arrow, MANIFEST_COLUMNS)
        manifest = read_whole(parquet)
        check_image_rows(manifest)
        _check_manifest(manifest, images)
        return manifest


def read_manifest_columns(
    store: Store, number: int, images: int, columns: Sequence[str]
) -> pa.Table:
    """These columns of the manifest of a shard, in this order. Raises as `read_manifest`."""
    key = manifest_key(number)
    with open_parquet(store, key) as parquet:
        manifest = read_whole(parquet, columns).select(list(columns))
        _check_manifest(manifest, images)
        return manifest


def _check_manifest(manifest: pa.Table, images: int) -> None:
    """Raise ValueError where no shard of so many images has such a manifest."""
    if manifest.num_rows != images:
        raise ValueError(f"it has {manifest.num_rows} rows for {images} images")
    if "status" in manifest.column_names:
        check_outcomes(manifest)
