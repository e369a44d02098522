"""Marking of near-duplicates, by a search for similar hashes that does not compare all pairs.

Hashes that differ in at most `d` bits are equal in at least `b - d` of any `b` blocks of bits
(G. Manku, A. Jain and A. Das Sarma, "Detecting near-duplicates for web crawling", 2007). For each
choice of `b - d` blocks, hashes are sorted into buckets with equal blocks. Only hashes of the same
bucket are compared. The first hash of a bucket removes all hashes near it, then the first of the
rest does the same. Ten million equal hashes therefore take one pass. If many hashes of a bucket are
left, it is split further by other bits.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.aggregate.image_table import ImageTable
from imagekiln.steps.job.gates import MAX_HASH_DISTANCE, NEAR_DUPLICATE
from imagekiln.steps.runs.manifest import replace_column, write_manifest
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.concurrency import map_ordered

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int32]

HASH_BITS = 64
MAX_BLOCKS = MAX_HASH_DISTANCE + 8
PASS_OVERHEAD = 1000  # overhead of a pass over hashes, in comparisons
COMPARISONS_PER_HASH = 32  # per choice of blocks, before the rest is split further
INDEX_MASK = np.uint64(2**32 - 1)
BUCKET_SHIFT = np.uint64(32)
SELECT_HASHES = "SELECT rowid, phash FROM images WHERE phash IS NOT NULL ORDER BY rowid"
INSERT_FOUND = """
    INSERT INTO near_duplicates
    SELECT number, image_id FROM found JOIN images ON images.rowid = original ORDER BY number"""
SELECT_FOUND = "FROM near_duplicates WHERE number >= ? AND number < ?"


def find_earlier_matches(hashes: npt.NDArray[np.int64]) -> Indices:
    """Return, for each hash, the index of an earlier hash near it, or -1.

    No two hashes with -1 are near each other. The earlier hash may itself have a match.
    """
    count = len(hashes)
    indices = np.arange(count, dtype=np.int32)
    matches = np.full(count, -1, np.int32)
    _find_matches(hashes.view(np.uint64), indices, fixed=0, matches=matches)
    return matches


def _find_matches(hashes: Hashes, indices: Indices, fixed: int, matches: Indices) -> None:
    """Match the hashes at `indices`, which are already in buckets by the bits `fixed`."""
    for mask in block_masks(fixed, len(indices)):
        indices = indices[matches[indices] < 0]
        if len(indices) < 2:
            return
        budget = COMPARISONS_PER_HASH * (len(indices) + PASS_OVERHEAD)
        # No variable holds the buckets, so that they are freed before the recursion.
        rest = _compare_buckets(hashes, _pack_buckets(hashes, indices, mask), matches, budget)
        if len(rest):
            _find_matches(hashes, rest, mask, matches)


def block_masks(fixed: int, count: int) -> Iterator[int]:
    """Yield masks of bits to compare, one per choice of blocks.

    Two hashes near each other that agree in the bits `fixed` also agree in one of these masks.
    """
    free_bits = [bit for bit in range(HASH_BITS) if not fixed >> bit & 1]
    block_count = _block_count(len(free_bits), count)
    blocks: list[int] = []
    for start in range(block_count):
        # Neighboring bits are correlated, so the bits of each block are spread out.
        bits = free_bits[start::block_count]
        blocks.append(sum(1 << bit for bit in bits))

    agreeing = max(0, block_count - MAX_HASH_DISTANCE)
    for choice in combinations(blocks, agreeing):
        yield fixed | sum(choice)


def _block_count(free_bits: int, count: int) -> int:
    """Return the fewest blocks that give random hashes a bucket each. More need more passes."""
    most = min(MAX_BLOCKS, free_bits)
    for blocks in range(MAX_HASH_DISTANCE + 1, most):
        shared_bits = free_bits * (blocks - MAX_HASH_DISTANCE) / blocks
        if count <= 2**shared_bits:
            return blocks
    return most


def _pack_buckets(hashes: Hashes, indices: Indices, mask: int) -> Hashes:
    """Pack hashes that share the bits of `mask` with another, as sorted bucket << 32 | index."""
    keys = hashes[indices]
    keys &= np.uint64(mask)
    order = np.argsort(keys)
    keys = keys[order]

    starts_bucket = _starts_of_buckets(keys)
    del keys  # saves memory, since there may be a hundred million hashes
    ends_bucket = np.append(starts_bucket[1:], True)
    shared = ~(starts_bucket & ends_bucket)

    packed: Hashes = np.cumsum(starts_bucket, dtype=np.uint64)[shared]
    packed <<= BUCKET_SHIFT
    shared_indices = indices[order[shared]]
    packed |= shared_indices.astype(np.uint64)
    packed.sort()
    return packed


def _starts_of_buckets(sorted_keys: Hashes) -> npt.NDArray[np.bool_]:
    """Return a mask of the keys that differ from the previous key."""
    differs = sorted_keys[1:] != sorted_keys[:-1]
    return np.concatenate([[True], differs])


def _compare_buckets(hashes: Hashes, packed: Hashes, matches: Indices, budget: int) -> Indices:
    """Compare the first hash of each bucket with the others, then the first of the rest, and so on.

    Returns the indices that are left when the budget of comparisons is spent.
    """
    while len(packed) and budget > 0:
        budget -= len(packed) + PASS_OVERHEAD
        starts_bucket = _starts_of_buckets(packed >> BUCKET_SHIFT)
        starts = np.flatnonzero(starts_bucket)
        bucket_sizes = np.diff(
            starts,
            append=len(packed),
        )

        indices = _unpack_indices(packed)
        leaders = np.repeat(indices[starts], bucket_sizes)
        differing_bits = np.bitwise_count(hashes[indices] ^ hashes[leaders])
        near = differing_bits <= MAX_HASH_DISTANCE

        followers = near & ~starts_bucket
        follower_indices = indices[followers]
        matches[follower_indices] = leaders[followers]
        packed = packed[~near]
    return np.unique(_unpack_indices(packed))


def _unpack_indices(packed: Hashes) -> Indices:
    indices = packed & INDEX_MASK
    return indices.astype(np.int32)


def mark_near_duplicates(table: ImageTable, run: Run, manifests: Sequence[str]) -> list[str]:
    """Add near-duplicates to the table, and write the manifests of shards that have any.

    Returns the keys of all manifests of the run, with the marks.
    """
    found = _find_duplicates(table)
    table.database.insert(INSERT_FOUND, "found", found)
    sizes = [shard.images for shard in run.plan.shards]
    ends = list(accumulate(sizes, initial=0))

    def mark(shard: int) -> str:
        first, end = ends[shard : shard + 2]
        rows = table.fetch(SELECT_FOUND, first, end)
        if not rows:
            return manifests[shard]
        manifest = read_table(run.store, manifests[shard])
        originals = {number - first: original.hex for number, original in rows}
        marked = _mark_rows(manifest, originals)
        return write_manifest(run.store, shard, marked)

    return list(map_ordered(mark, len(manifests)))


def _find_duplicates(table: ImageTable) -> pa.Table:
    """Find near-duplicates: the `number` of each, and the number of its `original`."""
    hashed = table.database.fetch_table(SELECT_HASHES)
    numbers = hashed["rowid"].to_numpy()
    hashes = hashed["phash"].to_numpy()
    matches = find_earlier_matches(hashes)
    is_duplicate = matches >= 0
    originals = matches[is_duplicate]
    return pa.table(
        {
            "number": numbers[is_duplicate],
            "original": numbers[originals],
        }
    )


def without_near_duplicates(manifest: pa.Table) -> pa.Table:
    """Remove near-duplicate marks, which depend on other shards, from an earlier manifest."""
    if manifest["near_duplicate_of"].null_count == manifest.num_rows:
        return manifest
    return _mark_rows(manifest, {})


def _mark_rows(manifest: pa.Table, originals: Mapping[int, str]) -> pa.Table:
    """Mark the rows in `originals`, which maps them to ids of earlier images."""
    marks = []
    for row, gates in enumerate(manifest["marks"].to_pylist()):
        others = gates and [gate for gate in gates if gate != NEAR_DUPLICATE]
        if row in originals:
            others = [*others, NEAR_DUPLICATE]
        marks.append(others)
    columns = {
        "marks": marks,
        "near_duplicate_of": [originals.get(row) for row in range(len(marks))],
    }
    for name, values in columns.items():
        column = pa.array(values, manifest[name].type)
        manifest = replace_column(manifest, name, column)
    return manifest.combine_chunks()
