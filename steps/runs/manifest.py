"""Reading the manifest: a row for each planned image of a shard, with what became of it."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.runs.keys import IMAGE_ID_PATTERN, manifest_key
from imagekiln.steps.runs.tables import open_parquet, parse_parquet, read_whole
from imagekiln.steps.storage.store import Store


def read_manifest(store: Store, number: int, images: int) -> pa.Table:
    """The manifest of a shard with so many images. Raises Missing, or BadInput if it is damaged."""
    key = manifest_key(number)
    with parse_parquet(store.read(key), store.uri_of(key)) as parquet:
        manifest = read_whole(parquet)
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
    """Raise ValueError where no shard of so many images has such a manifest.

    Ids become names of files, whoever wrote them.
    """
    if manifest.num_rows != images:
        raise ValueError(f"it has {manifest.num_rows} rows for {images} images")
    if "image_id" in manifest.column_names:
        is_id = pc.match_substring_regex(manifest["image_id"], IMAGE_ID_PATTERN)
        if not pc.all(pc.fill_null(is_id, False), min_count=0).as_py():
            raise ValueError("the column image_id has values that no run has")
