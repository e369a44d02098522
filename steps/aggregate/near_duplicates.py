"""Marks near-duplicates: finds hashes nearly equal to an earlier one without comparing all pairs.

Hashes that differ in at most `d` bits agree entirely in at least `b - d` of any `b` blocks of bits
(G. Manku, A. Jain and A. Das Sarma, "Detecting near-duplicates for web crawling", 2007). So for
each choice of `b - d` blocks, hashes are sorted by these, and only those in one bucket, which agree
in all of them, are compared. In a bucket, the first hash removes everything near it, then the first
of the rest does, so that ten million equal hashes take one pass. A bucket whose hashes are far from
each other is split further, by the bits in which they do not agree yet.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import comb
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.gates import MAX_HASH_DISTANCE, NEAR_DUPLICATE, Gate
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.tables import read_column, read_table, to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store

T = TypeVar("T")
Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int32]
RowIndices = npt.NDArray[np.integer]

HASH_BITS = 64
MAX_EXTRA_BLOCKS = 8
SORT_COST = 4  # of a hash, in comparisons
PASS_OVERHEAD = 1000  # of a pass over hashes, in comparisons
COMPARISONS_PER_HASH = 32  # in one choice of blocks, before what is left is split further
INDEX_MASK = np.uint64(2**32 - 1)
BUCKET_SHIFT = np.uint64(32)


def find_earlier_matches(hashes: npt.NDArray[np.int64]) -> Indices:
    """For each hash, the index of a near earlier one, or else -1.

    No two hashes with -1 are near each other. An earlier one may itself have a match.
    """
    count = len(hashes)
    indices = np.arange(count, dtype=np.int32)
    matches = np.full(count, -1, np.int32)
    _find_matches(
        hashes.view(np.uint64),
        indices,
        fixed=0,
        matches=matches,
    )
    return matches


def _find_matches(hashes: Hashes, indices: Indices, fixed: int, matches: Indices) -> None:
    """Match the hashes at `indices`, which share the bits `fixed` with the rest of their bucket."""
    for mask in block_masks(fixed, len(indices)):
        indices = indices[matches[indices] < 0]
        if len(indices) < 2:
            return
        budget = COMPARISONS_PER_HASH * (len(indices) + PASS_OVERHEAD)
        rest = _compare_buckets(
            hashes,
            _pack_buckets(
                hashes, indices, mask
            ),  # in no variable, to be freed before the recursion
            matches,
            budget,
        )
        if len(rest):
            _find_matches(hashes, rest, mask, matches)


def block_masks(fixed: int, count: int) -> Iterator[int]:
    """The bits to agree in, one choice of blocks after the other.

    Hashes that agree in the bits `fixed` and are near each other agree in one of these masks.
    """
    free_bits = [bit for bit in range(HASH_BITS) if not fixed >> bit & 1]
    block_count = _cheapest_block_count(len(free_bits), count)
    blocks: list[int] = []
    for start in range(block_count):
        # Neighboring bits are correlated, so each block takes bits from everywhere.
        bits = free_bits[start::block_count]
        blocks.append(sum(1 << bit for bit in bits))

    agreeing = max(0, block_count - MAX_HASH_DISTANCE)
    for choice in combinations(blocks, agreeing):
        yield fixed | sum(choice)


def _cheapest_block_count(free_bits: int, count: int) -> int:
    most = min(MAX_HASH_DISTANCE + MAX_EXTRA_BLOCKS, free_bits)
    most = max(1, most)
    least = min(MAX_HASH_DISTANCE + 1, most)
    return min(
        range(least, most + 1),
        key=lambda blocks: _search_cost(blocks, free_bits, count),
    )


def _search_cost(blocks: int, free_bits: int, count: int) -> float:
    """The cost of all choices of blocks, in comparisons, where hashes are random."""
    agreeing = max(0, blocks - MAX_HASH_DISTANCE)
    shared_bits = free_bits * agreeing / blocks
    bucket_size = count / 2**shared_bits
    hash_cost = SORT_COST + bucket_size
    pass_cost = count * hash_cost + PASS_OVERHEAD
    passes = comb(blocks, MAX_HASH_DISTANCE)
    return passes * pass_cost


def _pack_buckets(hashes: Hashes, indices: Indices, mask: int) -> Hashes:
    """The hashes that share the bits of `mask` with another, as sorted bucket << 32 | index."""
    keys = hashes[indices]
    keys &= np.uint64(mask)
    order = np.argsort(keys)
    keys = keys[order]

    starts_bucket = _starts_of_buckets(keys)
    del keys  # memory is tight: there may be a hundred million hashes
    ends_bucket = np.append(starts_bucket[1:], True)
    shared = ~(starts_bucket & ends_bucket)

    packed: Hashes = np.cumsum(starts_bucket, dtype=np.uint64)[shared]
    packed <<= BUCKET_SHIFT
    shared_indices = indices[order[shared]]
    packed |= shared_indices.astype(np.uint64)
    packed.sort()
    return packed


def _starts_of_buckets(sorted_keys: Hashes) -> npt.NDArray[np.bool_]:
    """Where another key follows, and at the first one."""
    differs = sorted_keys[1:] != sorted_keys[:-1]
    return np.concatenate([[True], differs])


def _compare_buckets(hashes: Hashes, packed: Hashes, matches: Indices, budget: int) -> Indices:
    """Compare the first of each bucket with the others, then the first of the rest, and so on.

    Returns the indices that are left when the budget of comparisons is spent.
    """
    while len(packed) and budget > 0:
        budget -= len(packed) + PASS_OVERHEAD
        starts_bucket = _starts_of_buckets(packed >> BUCKET_SHIFT)
        starts = np.flatnonzero(starts_bucket)
        bucket_sizes = np.diff(starts, append=len(packed))

        indices = _unpack_indices(packed)
        leaders = np.repeat(indices[starts], bucket_sizes)
        near = _differing_bits(hashes, indices, leaders) <= MAX_HASH_DISTANCE

        followers = near & ~starts_bucket
        follower_indices = indices[followers]
        matches[follower_indices] = leaders[followers]
        packed = packed[~near]
    return np.unique(_unpack_indices(packed))


def _differing_bits(hashes: Hashes, indices: Indices, others: Indices) -> npt.NDArray[np.uint8]:
    difference = hashes[indices]
    difference ^= hashes[others]
    count: npt.NDArray[np.uint8] = np.bitwise_count(difference)
    return count


def _unpack_indices(packed: Hashes) -> Indices:
    indices = packed & INDEX_MASK
    return indices.astype(np.int32)


class NearDuplicateMarker:
    """Collects the hashes of a run, 12 bytes an image, shard by shard; then marks duplicates."""

    def __init__(self, gate: Gate | None) -> None:
        """Begin with no image. Without a gate, nothing is collected and nothing marked."""
        self._gate = gate
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._rows: list[RowIndices] = []  # of each hash, in the manifest of its shard

    def add(self, manifest: pa.Table) -> None:
        """Add the images of the next shard."""
        if self._gate is None:
            return
        hashes = manifest["phash"].combine_chunks()
        has_hash = hashes.is_valid().to_numpy(zero_copy_only=False)
        present = hashes.drop_null()
        rows = np.flatnonzero(has_hash)
        self._hashes.append(present.to_numpy(zero_copy_only=False))
        self._rows.append(rows.astype(np.int32))

    def mark_manifests(self, store: Store) -> Iterator[pa.Table]:
        """Rewrite the manifests with near-duplicates. Yields the marked rows, shard by shard."""
        if self._gate is None or not self._hashes:
            return
        hashes = np.concatenate(self._hashes)
        matches = find_earlier_matches(hashes)
        del hashes
        duplicates = np.flatnonzero(matches >= 0)
        originals, original_of = np.unique(
            matches[duplicates],
            return_inverse=True,
        )
        ids = self._read_image_ids(store, originals)

        def mark(shard: int, rows: RowIndices, selected: slice) -> pa.Table:
            original_ids = ids[original_of[selected]]
            texts = original_ids.astype(str)
            return _write_marks(store, shard, rows, texts)

        yield from self._map_shards(duplicates, mark)

    def _read_image_ids(self, store: Store, hash_indices: RowIndices) -> npt.NDArray[np.bytes_]:
        def read(shard: int, rows: RowIndices, selected: slice) -> tuple[slice, list[str]]:
            column = read_column(store, manifest_key(shard), "image_id")
            row_numbers = pa.array(rows)
            shard_ids = column.take(row_numbers)
            return selected, shard_ids.to_pylist()

        ids = np.empty(len(hash_indices), "S32")  # hexadecimal digits
        for selected, shard_ids in self._map_shards(hash_indices, read):
            ids[selected] = shard_ids
        return ids

    def _map_shards(
        self, hash_indices: RowIndices, work: Callable[[int, RowIndices, slice], T]
    ) -> Iterator[T]:
        """What `work` gives for each shard with some of these hashes, which are sorted.

        It gets the shard's number, the rows of the hashes in the shard's manifest, and the slice of
        `hash_indices` that they are.
        """
        sizes = [len(hashes) for hashes in self._hashes]
        shard_starts = np.cumsum([0, *sizes])
        cuts = np.searchsorted(hash_indices, shard_starts)
        counts = np.diff(cuts)
        shards = np.flatnonzero(counts).tolist()

        def work_on(number: int) -> T:
            shard = shards[number]
            start = cuts[shard]
            selected = slice(start, start + counts[shard])
            indices_in_shard = hash_indices[selected] - shard_starts[shard]
            shard_rows = self._rows[shard]
            return work(shard, shard_rows[indices_in_shard], selected)

        return map_ordered(work_on, len(shards))


def mark_near_duplicates(manifest: pa.Table, originals: pa.ChunkedArray) -> pa.Table:
    """The manifest with a mark on each image that has an original: the id of an earlier one."""
    marks = manifest["marks"].to_pylist()
    is_duplicate = pc.is_valid(originals).to_numpy()
    for row in np.flatnonzero(is_duplicate):
        row_marks = marks[row] or []
        marks[row] = [*row_marks, NEAR_DUPLICATE]

    marks_field = manifest.schema.field("marks")
    column = pa.array(marks, marks_field.type)
    marked = _replace_column(manifest, "marks", column)
    marked = _replace_column(marked, "near_duplicate_of", originals)
    return marked.combine_chunks()


def _write_marks(
    store: Store, shard: int, rows: RowIndices, originals: npt.NDArray[np.str_]
) -> pa.Table:
    key = manifest_key(shard)
    manifest = read_table(store, key)
    values = np.full(manifest.num_rows, None, object)
    values[rows] = originals
    column = pa.array(values, pa.string())

    marked = mark_near_duplicates(manifest, pa.chunked_array([column]))
    store.replace(key, to_parquet(marked))
    return marked.take(pa.array(rows))


def _replace_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    return table.set_column(index, field, values)
