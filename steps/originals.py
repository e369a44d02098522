"""Near-duplicates in the manifest: each image that looks like an earlier one of the run is marked, and names it."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import names, near_duplicates, tables
from imagekiln.steps.gate_settings import NEAR_DUPLICATE, NearDuplicate
from imagekiln.steps.in_order import in_order
from imagekiln.steps.storage import Store

T = TypeVar("T")
Rows = npt.NDArray[np.integer]


class Originals:
    """Collects the hashes of a run, shard after shard, 12 bytes an image; then marks what was found."""

    def __init__(self, gate: NearDuplicate | None) -> None:
        """Begin at nothing. Without a gate, nothing is collected and nothing found."""
        self._gate = gate
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._rows: list[Rows] = []  # in its shard, of each image that has a hash

    def add(self, manifest: pa.Table) -> None:
        """Add the next shard's images."""
        if self._gate is not None:
            hashes = manifest["phash"].combine_chunks()
            self._hashes.append(hashes.drop_null().to_numpy(zero_copy_only=False))
            self._rows.append(np.flatnonzero(hashes.is_valid().to_numpy(zero_copy_only=False)).astype(np.int32))

    def mark(self, store: Store) -> Iterator[pa.Table]:
        """Write the manifests anew in which something was found. Gives the rows that were marked, shard by shard."""
        if self._gate is None or not self._hashes:
            return
        found = near_duplicates.originals(np.concatenate(self._hashes), self._gate.distance)
        marked = np.flatnonzero(found >= 0)
        firsts, named = np.unique(found[marked], return_inverse=True)
        ids = np.empty(len(firsts), "S32")  # they are hexadecimal
        for rows, here in self._each_shard(firsts, lambda shard, rows, here: (_ids(store, shard, rows), here)):
            ids[here] = rows
        yield from self._each_shard(
            marked, lambda shard, rows, here: _write(store, shard, rows, ids[named[here]].astype(str))
        )

    def _each_shard(self, places: Rows, work: Callable[[int, Rows, slice], T]) -> Iterator[T]:
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

        return in_order(one, len(shards))


def _ids(store: Store, shard: int, rows: Rows) -> list[str]:
    ids: list[str] = tables.column(store, names.manifest(shard), "image_id").take(pa.array(rows)).to_pylist()
    return ids


def _write(store: Store, shard: int, rows: Rows, ids: npt.NDArray[np.str_]) -> pa.Table:
    manifest = tables.read(store, names.manifest(shard))
    of = np.full(manifest.num_rows, None, object)
    of[rows] = ids
    marked = marked_by(manifest, pa.chunked_array([pa.array(of, pa.string())]))
    store.replace(names.manifest(shard), tables.to_parquet(marked))
    return marked.take(pa.array(rows))


def marked_by(manifest: pa.Table, of: pa.ChunkedArray) -> pa.Table:
    """The manifest in which the images of which `of` says so are near-duplicates of others."""
    near = pc.is_valid(of).to_pylist()
    marks = [
        [*(old or []), NEAR_DUPLICATE] if is_near else old
        for old, is_near in zip(manifest["marks"].to_pylist(), near, strict=True)
    ]
    for name, values in (("marks", pa.array(marks, manifest.schema.field("marks").type)), ("near_duplicate_of", of)):
        manifest = manifest.set_column(manifest.schema.get_field_index(name), manifest.schema.field(name), values)
    return manifest.combine_chunks()
