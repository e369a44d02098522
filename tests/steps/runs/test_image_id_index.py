"""The index of a run's images: ids, buckets on disk, and chunks beside the manifest."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs import image_id_index
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.image_id_index import (
    NUMBERED_ID_DTYPE,
    IdBuckets,
    bucket_numbers,
    ids_from_hex,
    overlapping_buckets,
    read_index_chunk,
)
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.image_ids import hexadecimal, iter_index_chunks, write


def read(store: Store) -> list[str]:
    """Every id of the index, as digits."""
    content = b"".join(chunk.tobytes() for chunk in iter_index_chunks(store))
    return [content[start : start + 16].hex() for start in range(0, len(content), 16)]


def chunk_names(store: Store) -> tuple[str, ...]:
    """The chunks of the index, by the highest commit."""
    return read_head(store).commit.image_ids


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a hundred ids or so."""
    monkeypatch.setattr(image_id_index, "IDS_PER_CHUNK", 100)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_buckets_are_ranges_in_the_order_of_ids(count: int) -> None:
    ids = np.sort(ids_from_hex(pa.array(hexadecimal(500))))
    numbers = bucket_numbers(ids, count)
    assert (np.diff(numbers.astype(int)) >= 0).all()
    assert (numbers[0], numbers[-1]) == (0, count - 1)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("other_count", [1, 3, 16])
def test_ranges_that_share_an_id_overlap(count: int, other_count: int) -> None:
    ids = ids_from_hex(pa.array(hexadecimal(2000)))
    numbers = bucket_numbers(ids, count).tolist()
    other_numbers = bucket_numbers(ids, other_count).tolist()
    overlaps = {
        (number, other)
        for number in range(count)
        for other in overlapping_buckets(number, count, other_count)
    }
    assert set(zip(numbers, other_numbers, strict=True)) <= overlaps
    assert len(overlaps) < count + other_count, "and hardly any besides"


@pytest.mark.parametrize("count", [1, 4])
def test_every_record_is_in_its_bucket_and_buckets_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(image_id_index, "BUFFER_RECORDS", 64)
    records = np.empty(1000, NUMBERED_ID_DTYPE)
    records["id"] = ids_from_hex(pa.array(hexadecimal(1000)))
    records["number"] = np.arange(1000)
    buckets = IdBuckets(tmp_path, count, NUMBERED_ID_DTYPE)
    for start in range(0, 1000, 30):
        buckets.add(records[start : start + 30])
    for _ in range(2):
        stored = np.concatenate([buckets.read(number) for number in range(count)])
        assert np.array_equal(stored, records[np.argsort(records["id"])])


def test_index_lists_the_images_that_are_ok_in_order(store_uri: str) -> None:
    store = open_store(store_uri)
    ids = hexadecimal(60)
    write(store, ids, failed=20)
    assert read(store) == sorted(ids[:40])


@pytest.mark.usefixtures("small_chunks")
def test_large_index_lies_in_chunks_each_a_range(store: Store) -> None:
    ids = hexadecimal(950)
    write(store, ids)
    names = chunk_names(store)
    assert read(store) == sorted(ids)
    assert len(names) == 10


@pytest.mark.parametrize("count", [0, 3])
def test_run_without_an_image_that_is_ok_has_an_index_too(store: Store, count: int) -> None:
    write(store, hexadecimal(count), failed=count)
    assert read(store) == []


@pytest.mark.usefixtures("small_chunks")
def test_index_is_the_same_bytes_whatever_the_order_of_images(tmp_path: Path) -> None:
    one = open_store(str(tmp_path / "one"))
    other = open_store(str(tmp_path / "other"))
    ids = hexadecimal(300)
    write(one, ids)
    write(other, ids[::-1])
    names = chunk_names(one)
    assert chunk_names(other) == names  # which are digests
    assert len(names) == 3


def test_index_that_is_missing_says_what_to_do(store_uri: str) -> None:
    with pytest.raises(BadInput, match=r"image-ids/: .* Aggregate the run again\."):
        read(open_store(store_uri))


def test_damaged_index_is_refused(store: Store) -> None:
    write(store, hexadecimal(100))
    (name,) = chunk_names(store)
    content = bytearray(store.read(name))
    content[len(content) // 2] ^= 1
    store.replace(name, bytes(content))
    with pytest.raises(BadInput, match="is damaged"):
        read(store)


def test_other_tables_are_no_index(store: Store) -> None:
    name = "image-ids/00000"
    store.replace(name, to_parquet(pa.table({"other": [b"a" * 16]})))
    with pytest.raises(BadInput, match=r"00000: is not a chunk of an image index"):
        read_index_chunk(store, [name], 0)
