"""Which hashes are nearly equal to an earlier one, without comparing each with each.

Hashes that differ in at most `d` bits agree wholly in at least `b - d` of any `b` blocks of bits (G. Manku, A. Jain and
A. Das Sarma, "Detecting near-duplicates for web crawling", 2007). So for each choice of `b - d` blocks, hashes are
sorted by these, and only those that agree in all of them are compared. Of each such bucket the first hash takes what is
near it out, then the first that is left does so: a bucket of ten million equal hashes is done at once. A bucket whose
hashes stay far from each other is cut again, by the bits in which they do not agree.
"""

from collections.abc import Iterator
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

HASH_BITS = 64
MAX_EXTRA_BLOCKS = 8
SORT_COST = 4  # what sorting a hash takes, in comparisons of one
COMPARISONS_PER_HASH = 32  # comparisons a hash in one choice of blocks, before the rest is cut again
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
    _find_matches(hashes.view(np.uint64), np.arange(len(hashes), dtype=np.int32), 0, distance, found)
    return found


def _find_matches(hashes: Hashes, places: Indices, fixed: int, distance: int, found: Indices) -> None:
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
        range(min(distance + 1, most), most + 1), key=lambda blocks: _search_cost(blocks, distance, len(free), count)
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


def _compare_buckets(hashes: Hashes, packed: Hashes, distance: int, found: Indices, patience: int) -> Indices:
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
