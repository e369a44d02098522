"""Near-duplicates in the manifest of a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.near_duplicates import NearDuplicateMarker
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.imaging.measures import ImageMeasures
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage, ImageQuality
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.runs import encoded, fill, not_ok, planned
from tests.steps.aggregate.test_gates import manifest

FAR = 0x0123_4567_89AB_CDEF


def _hashed(place: int, phash: int, *marks: str) -> EncodedImage:
    return replace(
        encoded(place), quality=ImageQuality(marks, None, ImageMeasures(0.2, 0.1, phash))
    )


def _unlike(place: int) -> int:
    """A hash far from those of other places."""
    return (FAR * (2 * place + 3) * 0x9E3779B97F4A7C15 & (2**64 - 1)) - 2**63


def _filled(there: PlanResult, hashes: Mapping[int, int]) -> Store:
    """A run of 20 images in shards of 8, 8 and 4; those that `hashes` does not name are unlike all others."""
    images = {place: _hashed(place, hashes.get(place, _unlike(place))) for place in range(20)}
    fill(there, {**images, 3: not_ok(3)})
    return open_store(there.uri)


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


def test_later_ones_name_the_first_across_shards_on_disk_and_s3(
    tmp_path: Path, store_uri: str
) -> None:
    store = _filled(_planned(tmp_path, store_uri), ALIKE)
    summary = aggregate(store.uri)
    there = pa.concat_tables([read_table(store, manifest_key(number)) for number in range(3)])
    ids, of = there["image_id"].to_pylist(), there["near_duplicate_of"].to_pylist()
    assert of == [ids[2] if place in (6, 9, 17) else None for place in range(20)]
    assert there["marks"].to_pylist() == [["near_duplicate"] if name else [] for name in of]
    assert set(there["status"].to_pylist()) == {"ok", "failed"}
    assert summary.marks["near_duplicate"] == 3
    assert verify(store.uri).ok == 19


def test_without_the_gate_nothing_is_compared(tmp_path: Path) -> None:
    there = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0.1})
    summary = aggregate(_filled(there, ALIKE).uri)
    assert "near_duplicate" not in summary.marks
    assert manifest(open_store(there.uri))["near_duplicate_of"].null_count == 20


def test_distance_is_the_job_s(tmp_path: Path) -> None:
    store = _filled(_planned(tmp_path, distance=2), ALIKE)
    assert (
        aggregate(store.uri).marks["near_duplicate"] == 2
    )  # 9 is equal, 17 two bits away, 6 three


def test_other_marks_stay_in_front(tmp_path: Path) -> None:
    there = _planned(tmp_path)
    fill(there, {place: _hashed(place, 0, "low_contrast") for place in range(2)})
    aggregate(there.uri)
    found = manifest(open_store(there.uri))["marks"].to_pylist()
    assert found[:3] == [["low_contrast"], ["low_contrast", "near_duplicate"], []]


def test_a_share_of_near_duplicates_fails_the_run_and_the_manifest_has_them(tmp_path: Path) -> None:
    store = _filled(_planned(tmp_path, share=0.1), ALIKE)
    with pytest.raises(
        Incomplete, match=r"near_duplicate found 3 of 20 \(0.15, and its share is 0.1\)"
    ):
        aggregate(store.uri)
    assert manifest(store)["near_duplicate_of"].null_count == 17


def test_verify_finds_an_aggregation_that_was_killed_before_it_marked_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _filled(_planned(tmp_path), ALIKE)
    aggregate(store.uri)
    with monkeypatch.context() as patch:
        patch.setattr(NearDuplicateMarker, "mark", _killed)
        with pytest.raises(KeyboardInterrupt):
            aggregate(store.uri)
    with pytest.raises(Incomplete, match="its manifest marks 0 near-duplicates and not 3"):
        verify(store.uri)
    aggregate(store.uri)
    assert verify(store.uri).ok == 19


def _killed(*_: object) -> int:
    raise KeyboardInterrupt


def test_only_manifests_in_which_something_was_found_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _filled(_planned(tmp_path), {2: 0, 17: 0})
    written: list[str] = []
    replace_object = type(store).replace

    def noting(self: Store, key: str, data: bytes) -> None:
        written.append(key)
        replace_object(self, key, data)

    monkeypatch.setattr(type(store), "replace", noting)
    aggregate(store.uri)
    assert [written.count(manifest_key(number)) for number in range(3)] == [1, 1, 2]


def test_aggregating_again_gives_the_same_manifests(tmp_path: Path) -> None:
    store = _filled(_planned(tmp_path), ALIKE)
    aggregate(store.uri)
    before = [store.read(manifest_key(number)) for number in range(3)]
    aggregate(store.uri)
    assert [store.read(manifest_key(number)) for number in range(3)] == before


@pytest.mark.parametrize("column", ["marks", "near_duplicate_of", "contrast"])
def test_a_manifest_that_was_changed_is_found(column: str, tmp_path: Path) -> None:
    store = _filled(_planned(tmp_path), ALIKE)
    aggregate(store.uri)
    there = pq.read_table(store.uri_of(manifest_key(1)))
    other = (
        there[column].take(pa.array([1, 0, *range(2, 8)]))
        if column != "contrast"
        else pa.array([0.5] * 8)
    )
    place = there.schema.get_field_index(column)
    changed = there.set_column(
        place, there.schema.field(column), other.cast(there.schema.field(column).type)
    )
    store.replace(manifest_key(1), to_parquet(changed))
    with pytest.raises(Incomplete, match=r"manifest/00001.parquet: differs from the parts"):
        verify(store.uri)


def test_a_run_of_nothing_but_failures_has_no_near_duplicates(tmp_path: Path) -> None:
    there = planned(
        tmp_path, str(tmp_path / "out"), gates={"near_duplicate": {}}, limits={"failed_share": 1}
    )
    fill(there, {place: not_ok(place) for place in range(20)})
    assert aggregate(there.uri).marks["near_duplicate"] == 0
