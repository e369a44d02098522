"""Near-duplicates: nearly equal hashes, and how images are marked in the manifest."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.aggregate import near_duplicates
from imagekiln.steps.aggregate.near_duplicates import (
    find_earlier_matches,
)
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.imaging.measures import ImageMeasures
from imagekiln.steps.job.gates import MAX_HASH_DISTANCE
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage, ImageQuality
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import manifest_names
from tests.runs import encoded, fill, not_ok, planned
from tests.s3 import S3_AMONG_SLOW
from tests.steps.aggregate.test_gates import manifest

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


def _holds(hashes: npt.NDArray[np.int64]) -> None:
    """What is promised: an original is earlier and near, and no two without one are near."""
    bare: Hashes = hashes.view(np.uint64)
    near = np.bitwise_count(bare[:, None] ^ bare[None, :]) <= MAX_HASH_DISTANCE
    result = find_earlier_matches(hashes)
    marked = np.flatnonzero(result >= 0)
    assert (result[marked] < marked).all()
    assert near[marked, result[marked]].all()
    remaining = np.flatnonzero(result < 0)
    assert near[np.ix_(remaining, remaining)].sum() == len(remaining)


def test_each_marked_hash_is_near_an_earlier_one_and_no_two_others_are_near() -> None:
    for seed in range(5):
        _holds(_clusters(seed))


def test_it_holds_where_every_bucket_is_split_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "COMPARISONS_PER_HASH", 1)
    monkeypatch.setattr(near_duplicates, "PASS_OVERHEAD", 1)
    low = np.random.default_rng(3).integers(0, 2**14, 500, dtype=np.int64)
    _holds(low)
    _holds(_clusters(9))


def test_a_million_equal_hashes_take_no_longer_than_others() -> None:
    started = time.process_time()
    result = find_earlier_matches(np.zeros(1_000_000, np.int64))
    assert result[0] == -1
    assert not result[1:].any()
    assert time.process_time() - started < 5


FAR = 0x0123_4567_89AB_CDEF


def _hashed(place: int, phash: int, *marks: str) -> EncodedImage:
    return replace(
        encoded(place), quality=ImageQuality(marks, None, ImageMeasures(0.2, 0.1, phash))
    )


def _unlike(place: int) -> int:
    """A hash far from those of other places."""
    return (FAR * (2 * place + 3) * 0x9E3779B97F4A7C15 & (2**64 - 1)) - 2**63


def _filled(planned_run: PlanResult, hashes: Mapping[int, int]) -> Store:
    """A run of 20 images in shards of 8, 8 and 4, with these hashes; others are all unlike."""
    images = {place: _hashed(place, hashes.get(place, _unlike(place))) for place in range(20)}
    images[6] = _hashed(6, hashes[6], "low_contrast")
    fill(planned_run, {**images, 3: not_ok(3)})
    return open_store(planned_run.uri)


def _planned(tmp_path: Path, output: str = "", **gate: object) -> PlanResult:
    where = output or str(tmp_path / "out")
    return planned(tmp_path, where, gates={"near_duplicate": gate}, limits={"failed_share": 0.1})


ALIKE = {
    2: 0,
    6: 0b111,
    9: 0,
    17: 0b11 << 40,
    19: -1,
}  # 2, 6, 9, 17 within 4 bits of 2; 19 like none


@S3_AMONG_SLOW
def test_near_duplicates_name_the_first_image_across_shards_on_disk_and_s3(
    tmp_path: Path, store_uri: str
) -> None:
    store = _filled(_planned(tmp_path, store_uri), ALIKE)
    summary = aggregate(store.uri)
    table = manifest(store)
    ids, of = table["image_id"].to_pylist(), table["near_duplicate_of"].to_pylist()
    assert of == [ids[2] if place in (6, 9, 17) else None for place in range(20)]
    marks = [["near_duplicate"] if name else [] for name in of]
    marks[6] = ["low_contrast", "near_duplicate"]  # other marks stay in front
    assert table["marks"].to_pylist() == marks
    assert set(table["status"].to_pylist()) == {"ok", "failed"}
    assert summary.marks["near_duplicate"] == 3
    assert verify(store.uri).ok == 19


def test_marks_follow_the_images_from_commit_to_commit(tmp_path: Path) -> None:
    run = _planned(tmp_path)
    store = _filled(run, ALIKE)
    lost = store.read(part_key(0, 0))
    store.remove(part_key(0, 0))
    with pytest.raises(Incomplete):
        aggregate(store.uri)
    ids = manifest(store)["image_id"].to_pylist()
    assert _originals(store) == {9: ids[6], 17: ids[9]}

    store.create(part_key(0, 0), lost)
    aggregate(store.uri)
    assert _originals(store) == {6: ids[2], 9: ids[2], 17: ids[2]}
    names = manifest_names(store.uri)
    aggregate(store.uri)
    assert manifest_names(store.uri) == names

    forget(store.uri, ForgetSelection(ids=(ids[2],)), remove=True)
    assert _originals(store) == {9: ids[6], 17: ids[9]}
    assert verify(store.uri).ok == 18


def _originals(store: Store) -> dict[int, str]:
    of = manifest(store)["near_duplicate_of"].to_pylist()
    return {place: original for place, original in enumerate(of) if original is not None}
