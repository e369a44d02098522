import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs import image_index
from imagekiln.steps.runs.image_index import (
    ID_DTYPE,
    ID_RECORD_DTYPE,
    NUMBERED_ID_DTYPE,
    IdBuckets,
    bucket_numbers,
    ids_from_bytes,
    ids_from_hex,
    overlapping_buckets,
)

SPECIAL = ["00" * 16, "ff" * 16, "00" * 15 + "01", "ab" + "00" * 15, "7f" * 16, "80" + "00" * 15]


def hexadecimal(count: int, seed: int = 7) -> list[str]:
    """Some ids as digits, no two the same, with those at the edges."""
    drawn = np.random.default_rng(seed).bytes(16 * count)
    return [*SPECIAL, *(drawn[16 * place : 16 * (place + 1)].hex() for place in range(count))][
        :count
    ]


def test_ids_come_from_digits_and_from_bytes_alike() -> None:
    texts = hexadecimal(50)
    column = pa.array([bytes.fromhex(text) for text in texts])
    for found in (
        ids_from_hex(pa.array(texts)),
        ids_from_hex(pa.chunked_array([texts[:20], texts[20:]])),
        ids_from_bytes(column),
    ):
        assert found.tobytes() == bytes.fromhex("".join(texts))
    assert ids_from_bytes(column.slice(7, 3)).tobytes() == bytes.fromhex("".join(texts[7:10]))
    assert ids_from_hex(pa.array(texts).slice(7, 3)).tobytes() == bytes.fromhex(
        "".join(texts[7:10])
    )


def test_no_ids_are_no_mistake() -> None:
    assert (
        len(ids_from_hex(pa.array([], pa.string())))
        == len(ids_from_bytes(pa.array([], pa.binary())))
        == 0
    )
    assert len(bucket_numbers(np.empty(0, ID_DTYPE), 3)) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 200])
def test_buckets_are_ranges_in_the_order_of_ids(count: int) -> None:
    ids = np.sort(ids_from_hex(pa.array(hexadecimal(500))))
    places = bucket_numbers(ids, count)
    assert (np.diff(places.astype(int)) >= 0).all()
    assert (places[0], places[-1]) == (0, count - 1)


def test_ranges_that_share_an_id_overlap() -> None:
    ids = ids_from_hex(pa.array(hexadecimal(2000)))
    for count in (1, 2, 3, 5, 8):
        for others in (1, 2, 3, 7, 16):
            both = set(
                zip(
                    bucket_numbers(ids, count).tolist(),
                    bucket_numbers(ids, others).tolist(),
                    strict=True,
                )
            )
            told = {
                (mine, other)
                for mine in range(count)
                for other in overlapping_buckets(mine, count, others)
            }
            assert both <= told
            assert len(told) < count + others  # and hardly any besides


@pytest.mark.parametrize("count", [1, 4])
def test_every_record_is_in_its_bucket_and_buckets_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(image_index, "BUFFER_RECORDS", 64)
    records = np.empty(1000, NUMBERED_ID_DTYPE)
    records["id"], records["number"] = ids_from_hex(pa.array(hexadecimal(1000))), np.arange(1000)
    distributed = IdBuckets(tmp_path, count, NUMBERED_ID_DTYPE)
    for start in range(0, 1000, 30):
        distributed.add(records[start : start + 30])
    found = np.concatenate([distributed.read(number) for number in range(count)])
    assert np.array_equal(found, records[np.argsort(records["id"])])
    assert np.array_equal(
        np.concatenate([distributed.read(number) for number in range(count)]), found
    )


def test_buckets_without_records_are_empty(tmp_path: Path) -> None:
    assert [len(IdBuckets(tmp_path, 3, ID_RECORD_DTYPE).read(number)) for number in range(3)] == [
        0,
        0,
        0,
    ]


def test_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    there = IdBuckets(tmp_path, 2, ID_RECORD_DTYPE)
    there.add(ids_from_hex(pa.array(hexadecimal(3))).view(ID_RECORD_DTYPE))
    with pytest.raises(TryAgain, match="the disk is full"):
        there.read(0)
