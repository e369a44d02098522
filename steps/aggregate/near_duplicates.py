"""Which hashes are nearly equal to an earlier one, without comparing each with each.

Hashes that differ in at most `d` bits agree wholly in at least `b - d` of any `b` blocks of bits (G. Manku, A. Jain and
A. Das Sarma, "Detecting near-duplicates for web crawling", 2007). So for each choice of `b - d` blocks, hashes are
sorted by these, and only those that agree in all of them are compared. Of each such bucket the first hash takes what is
near it out, then the first that is left does so: a bucket of ten million equal hashes is done at once. A bucket whose
hashes stay far from each other is cut again, by the bits in which they do not agree.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import comb
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.gates import NEAR_DUPLICATE, NearDuplicateGate
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.tables import read_column, read_table, to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store

HASH_BITS = 64
MAX_EXTRA_BLOCKS = 8
SORT_COST = 4  # what sorting a hash takes, in comparisons of one
COMPARISONS_PER_HASH = (
    32  # comparisons a hash in one choice of blocks, before the rest is cut again
)
PASS_OVERHEAD = 1000  # comparisons that take as long as beginning anew
INDEX_MASK = np.uint64(2**32 - 1)
BUCKET_SHIFT = np.uint64(32)
Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int32]


def find_earlier_matches(hashes: npt.NDArray[np.int64], distance: int) -> Indices:
    """For each hash, the place of an earlier one at most `distance` bits away; -1 where it is the first of its kind.

    No two hashes with -1 are within the distance. An earlier one may have an original itself.
    """
    found = np.full(len(hashes), -1, np.int32)
    _find_matches(
        hashes.view(np.uint64), np.arange(len(hashes), dtype=np.int32), 0, distance, found
    )
    return found


def _find_matches(
    hashes: Hashes, places: Indices, fixed: int, distance: int, found: Indices
) -> None:
    """Compare hashes at `places`, which agree in the bits `fixed` with those in their bucket."""
    for mask in block_masks(fixed, distance, len(places)):
        places = places[found[places] < 0]
        if len(places) < 2:
            return
        crowded = _compare_buckets(
            hashes,
            _pack_buckets(hashes, places, mask),
            distance,
            found,
            COMPARISONS_PER_HASH * (len(places) + PASS_OVERHEAD),
        )
        if len(crowded):
            _find_matches(hashes, crowded, mask, distance, found)


def block_masks(fixed: int, distance: int, count: int) -> Iterator[int]:
    """The bits to agree in, choice after choice: hashes that agree in `fixed` and are near agree in one of them."""
    free = [bit for bit in range(HASH_BITS) if not fixed >> bit & 1]
    most = max(1, min(distance + MAX_EXTRA_BLOCKS, len(free)))
    blocks = min(
        range(min(distance + 1, most), most + 1),
        key=lambda blocks: _search_cost(blocks, distance, len(free), count),
    )
    # Neighbouring bits say much the same, so each block takes some from everywhere.
    parts = [sum(1 << bit for bit in free[block::blocks]) for block in range(blocks)]
    return (fixed | sum(chosen) for chosen in combinations(parts, max(0, blocks - distance)))


def _search_cost(blocks: int, distance: int, free: int, count: int) -> float:
    bits = free * max(0, blocks - distance) / blocks
    return comb(blocks, distance) * (count * (SORT_COST + count / 2**bits) + PASS_OVERHEAD)


def _pack_buckets(hashes: Hashes, places: Indices, mask: int) -> Hashes:
    """The places of hashes that agree with another in the bits of `mask`: bucket << 32 | place, in order."""
    keys = hashes[places]
    keys &= np.uint64(mask)
    order = np.argsort(keys)
    keys = keys[order]
    begins = np.concatenate([[True], keys[1:] != keys[:-1]])
    del keys
    alone = begins & np.concatenate([begins[1:], [True]])
    packed: Hashes = np.cumsum(begins).astype(np.uint64)[~alone]
    packed <<= BUCKET_SHIFT
    packed |= places[order[~alone]].astype(np.uint64)
    packed.sort()
    return packed


def _compare_buckets(
    hashes: Hashes, packed: Hashes, distance: int, found: Indices, patience: int
) -> Indices:
    """Compare the first of each bucket with the others, then the first that is left, and so on.

    Returns the places that are left when patience ends.
    """
    while len(packed) and patience > 0:
        patience -= len(packed) + PASS_OVERHEAD
        groups = packed >> BUCKET_SHIFT
        begins = np.concatenate([[True], groups[1:] != groups[:-1]])
        del groups
        heads = np.flatnonzero(begins)
        places = (packed & INDEX_MASK).astype(np.int32)
        leaders = np.repeat(places[heads], np.diff(heads, append=len(packed)))
        near = np.bitwise_count(hashes[places] ^ hashes[leaders]) <= distance
        found[places[near & ~begins]] = leaders[near & ~begins]
        packed = packed[~near]
    return np.unique((packed & INDEX_MASK).astype(np.int32))


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
            self._rows.append(
                np.flatnonzero(hashes.is_valid().to_numpy(zero_copy_only=False)).astype(np.int32)
            )

    def mark_manifests(self, store: Store) -> Iterator[pa.Table]:
        """Write the manifests anew in which something was found. Gives the rows that were marked, shard by shard."""
        if self._gate is None or not self._hashes:
            return
        found = find_earlier_matches(np.concatenate(self._hashes), self._gate.distance)
        marked = np.flatnonzero(found >= 0)
        firsts, named = np.unique(found[marked], return_inverse=True)
        ids = np.empty(len(firsts), "S32")  # they are hexadecimal
        for rows, here in self._map_shards(
            firsts, lambda shard, rows, here: (_image_ids(store, shard, rows), here)
        ):
            ids[here] = rows
        yield from self._map_shards(
            marked,
            lambda shard, rows, here: _write_marks(
                store, shard, rows, ids[named[here]].astype(str)
            ),
        )

    def _map_shards(
        self, places: RowIndices, work: Callable[[int, RowIndices, slice], T]
    ) -> Iterator[T]:
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
    ids: list[str] = (
        read_column(store, manifest_key(shard), "image_id").take(pa.array(rows)).to_pylist()
    )
    return ids


def _write_marks(store: Store, shard: int, rows: RowIndices, ids: npt.NDArray[np.str_]) -> pa.Table:
    manifest = read_table(store, manifest_key(shard))
    of = np.full(manifest.num_rows, None, object)
    of[rows] = ids
    marked = mark_near_duplicates(manifest, pa.chunked_array([pa.array(of, pa.string())]))
    store.replace(manifest_key(shard), to_parquet(marked))
    return marked.take(pa.array(rows))


def mark_near_duplicates(manifest: pa.Table, of: pa.ChunkedArray) -> pa.Table:
    """The manifest in which the images of which `of` says so are near-duplicates of others."""
    near = pc.is_valid(of).to_pylist()
    marks = [
        [*(old or []), NEAR_DUPLICATE] if is_near else old
        for old, is_near in zip(manifest["marks"].to_pylist(), near, strict=True)
    ]
    for name, values in (
        ("marks", pa.array(marks, manifest.schema.field("marks").type)),
        ("near_duplicate_of", of),
    ):
        manifest = manifest.set_column(
            manifest.schema.get_field_index(name), manifest.schema.field(name), values
        )
    return manifest.combine_chunks()
