"""Near-duplicates in the manifest: each image that looks like an earlier one of the run is marked, and names it."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import names, near_duplicates, tables
from imagekiln.steps.gate_settings import NEAR_DUPLICATE, NearDuplicateGate
from imagekiln.steps.in_order import map_ordered
from imagekiln.steps.storage import Store

T = TypeVar("T")
RowIndices = npt.NDArray[np.integer]


class NearDuplicateMarker:
    """Collects the hashes of a run, shard after shard, 12 bytes an image; then marks what was found."""

    def __init__(self, gate: NearDuplicateGate | None) -> None:
        """Begin at nothing. Without a gate, nothing is collected and nothing found."""
        self._gate = gate
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._rows: list[RowIndices] = []  # in its shard, of each image that has a hash

    def add(self, manifest: pa.Table) -> None:
        """Add the next shard's images."""
        if self._gate is not None:
            hashes = manifest["phash"].combine_chunks()
            self._hashes.append(hashes.drop_null().to_numpy(zero_copy_only=False))
            self._rows.append(np.flatnonzero(hashes.is_valid().to_numpy(zero_copy_only=False)).astype(np.int32))

    def mark_manifests(self, store: Store) -> Iterator[pa.Table]:
        """Write the manifests anew in which something was found. Gives the rows that were marked, shard by shard."""
        if self._gate is None or not self._hashes:
            return
        found = near_duplicates.find_earlier_matches(np.concatenate(self._hashes), self._gate.distance)
        marked = np.flatnonzero(found >= 0)
        firsts, named = np.unique(found[marked], return_inverse=True)
        ids = np.empty(len(firsts), "S32")  # they are hexadecimal
        for rows, here in self._map_shards(firsts, lambda shard, rows, here: (_image_ids(store, shard, rows), here)):
            ids[here] = rows
        yield from self._map_shards(
            marked, lambda shard, rows, here: _write_marks(store, shard, rows, ids[named[here]].astype(str))
        )

    def _map_shards(self, places: RowIndices, work: Callable[[int, RowIndices, slice], T]) -> Iterator[T]:
        """What `work` gives for each shard that has some of these places, being told which rows of it they are, and
        where they stand in `places`.
        """
        begins = np.cumsum([0, *map(len, self._hashes)])
        cuts = np.searchsorted(places, begins)
        shards = np.flatnonzero(np.diff(cuts)).tolist()

        def one(number: int) -> T:
            shard = shards[number]
            here = slice(cuts[shard], cuts[shard + 1])
            return work(shard, self._rows[shard][places[here] - begins[shard]], here)

        return map_ordered(one, len(shards))


def _image_ids(store: Store, shard: int, rows: RowIndices) -> list[str]:
    ids: list[str] = tables.read_column(store, names.manifest_key(shard), "image_id").take(pa.array(rows)).to_pylist()
    return ids


def _write_marks(store: Store, shard: int, rows: RowIndices, ids: npt.NDArray[np.str_]) -> pa.Table:
    manifest = tables.read_table(store, names.manifest_key(shard))
    of = np.full(manifest.num_rows, None, object)
    of[rows] = ids
    marked = mark_near_duplicates(manifest, pa.chunked_array([pa.array(of, pa.string())]))
    store.replace(names.manifest_key(shard), tables.to_parquet(marked))
    return marked.take(pa.array(rows))


def mark_near_duplicates(manifest: pa.Table, of: pa.ChunkedArray) -> pa.Table:
    """The manifest in which the images of which `of` says so are near-duplicates of others."""
    near = pc.is_valid(of).to_pylist()
    marks = [
        [*(old or []), NEAR_DUPLICATE] if is_near else old
        for old, is_near in zip(manifest["marks"].to_pylist(), near, strict=True)
    ]
    for name, values in (("marks", pa.array(marks, manifest.schema.field("marks").type)), ("near_duplicate_of", of)):
        manifest = manifest.set_column(manifest.schema.get_field_index(name), manifest.schema.field(name), values)
    return manifest.combine_chunks()
