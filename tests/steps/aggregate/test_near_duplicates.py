"""Nearly equal hashes, against comparing each with each."""

import time

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.aggregate import near_duplicates
from imagekiln.steps.aggregate.near_duplicates import block_masks, find_earlier_matches

Hashes = npt.NDArray[np.uint64]


def _clusters(seed: int, count: int = 300) -> npt.NDArray[np.int64]:
    """Hashes around a few others, up to six bits away."""
    chance = np.random.default_rng(seed)
    centres = chance.integers(0, 2**64, 25, dtype=np.uint64)
    hashes = centres[chance.integers(0, 25, count)]
    for _ in range(6):
        bits = np.uint64(1) << chance.integers(0, 64, count, dtype=np.uint64)
        hashes = np.where(chance.random(count) < 0.5, hashes ^ bits, hashes)
    return hashes.view(np.int64)


def _near(hashes: npt.NDArray[np.int64], distance: int) -> npt.NDArray[np.bool_]:
    bare: Hashes = hashes.view(np.uint64)
    found: npt.NDArray[np.bool_] = np.bitwise_count(bare[:, None] ^ bare[None, :]) <= distance
    return found


def _holds(hashes: npt.NDArray[np.int64], distance: int) -> None:
    """What is promised: an original is earlier and near, and no two without one are near."""
    found, near = find_earlier_matches(hashes, distance), _near(hashes, distance)
    marked = np.flatnonzero(found >= 0)
    assert (found[marked] < marked).all()
    assert near[marked, found[marked]].all()
    kept = np.flatnonzero(found < 0)
    assert near[np.ix_(kept, kept)].sum() == len(kept)


@pytest.mark.parametrize("distance", range(9))
def test_each_marked_hash_is_near_an_earlier_one_and_no_two_others_are_near(distance: int) -> None:
    for seed in range(3):
        _holds(_clusters(seed), distance)


@pytest.mark.parametrize("distance", [0, 3, 8])
def test_it_holds_where_every_bucket_is_crowded(
    distance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "COMPARISONS_PER_HASH", 1)
    monkeypatch.setattr(near_duplicates, "PASS_OVERHEAD", 1)
    low = np.random.default_rng(3).integers(0, 2**14, 500, dtype=np.int64)
    _holds(low, distance)
    _holds(_clusters(9), distance)


def test_distance_is_counted_to_the_bit() -> None:
    hashes = np.array([0, 0b1111, 0b11111, -1], np.int64)
    assert find_earlier_matches(hashes, 4).tolist() == [-1, 0, 1, -1]
    assert find_earlier_matches(hashes, 3).tolist() == [-1, -1, 1, -1]
    assert find_earlier_matches(hashes, 0).tolist() == [-1, -1, -1, -1]


def test_the_first_stays_and_the_sign_bit_is_a_bit() -> None:
    hashes = np.array([7, -(2**63), 0, 7], np.int64)
    assert find_earlier_matches(hashes, 1).tolist() == [-1, -1, 1, 0]


@pytest.mark.parametrize("count", [0, 1])
def test_few_are_no_trouble(count: int) -> None:
    assert find_earlier_matches(np.zeros(count, np.int64), 4).tolist() == [-1] * count


def test_a_million_equal_hashes_take_no_longer_than_others() -> None:
    started = time.process_time()
    found = find_earlier_matches(np.zeros(1_000_000, np.int64), 4)
    assert found[0] == -1
    assert not found[1:].any()
    assert time.process_time() - started < 5


@pytest.mark.parametrize("distance", [0, 1, 4, 8])
@pytest.mark.parametrize("fixed", [0, 0xFFFF, 2**62 - 1])
def test_hashes_within_the_distance_agree_in_one_choice_of_bits(distance: int, fixed: int) -> None:
    chosen = list(block_masks(fixed, distance, 10_000))
    free = [bit for bit in range(64) if not fixed >> bit & 1]
    chance = np.random.default_rng(1)
    for _ in range(50):
        bits = chance.choice(free, min(distance, len(free)), replace=False)
        differ = sum(1 << int(bit) for bit in bits)
        assert any(not mask & differ for mask in chosen)
    assert all(mask & fixed == fixed for mask in chosen)
