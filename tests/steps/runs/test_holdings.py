from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs import image_index
from imagekiln.steps.runs.image_index import (
    CHUNK_COUNT_METADATA,
    ImageIndexWriter,
    count_indexed_images,
    iter_index_chunks,
    read_index_chunk,
)
from imagekiln.steps.runs.keys import image_ids_key
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.steps.runs.test_buckets import hexadecimal


def write(store: Store, ids: list[str], bad: int = 0) -> None:
    """Index these images in two shards, the last `bad` of them being not ok."""
    status = ["ok"] * (len(ids) - bad) + ["failed"] * bad
    manifest = pa.table(
        {"image_id": pa.array(ids, pa.string()), "status": pa.array(status, pa.string())}
    )
    with ImageIndexWriter(store, len(ids)) as held:
        held.add(manifest.slice(0, len(ids) // 2))
        held.add(manifest.slice(len(ids) // 2))
        held.write()


def read(store: Store) -> list[str]:
    """Every id of the index, as digits."""
    found = b"".join(piece.tobytes() for piece in iter_index_chunks(store))
    return [found[place : place + 16].hex() for place in range(0, len(found), 16)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a hundred ids or so."""
    monkeypatch.setattr(image_index, "IDS_PER_CHUNK", 100)


def test_index_names_the_images_that_are_ok_in_order(store_uri: str) -> None:
    store, ids = open_store(store_uri), hexadecimal(60)
    write(store, ids, bad=20)
    assert read(store) == sorted(ids[:40])
    assert count_indexed_images(store) == 40


@pytest.mark.usefixtures("small")
def test_large_index_lies_in_pieces_each_a_range(tmp_path: Path) -> None:
    store, ids = open_store(str(tmp_path)), hexadecimal(950)
    write(store, ids)
    assert [read_index_chunk(store, number)[1] for number in range(10)] == [10] * 10
    assert read(store) == sorted(ids)
    assert not store.exists(image_ids_key(10))


def test_run_without_a_good_image_has_an_index_too(tmp_path: Path) -> None:
    for count in (0, 3):
        store = open_store(str(tmp_path / str(count)))
        write(store, hexadecimal(count), bad=count)
        assert read(store) == []


@pytest.mark.usefixtures("small")
def test_index_is_the_same_bytes_whatever_the_order_of_images(tmp_path: Path) -> None:
    one, other, ids = (
        open_store(str(tmp_path / "one")),
        open_store(str(tmp_path / "other")),
        hexadecimal(300),
    )
    write(one, ids)
    write(other, ids[::-1])
    for number in range(3):
        assert one.read(image_ids_key(number)) == other.read(image_ids_key(number))


def test_index_is_written_anew(tmp_path: Path) -> None:
    store, ids = open_store(str(tmp_path)), hexadecimal(10)
    write(store, ids, bad=5)
    write(store, ids)
    assert read(store) == sorted(ids)


def test_index_that_is_gone_says_what_to_do(store_uri: str) -> None:
    with pytest.raises(
        BadInput, match=r"image-ids/00000\.parquet: is not there, .* Aggregate it again"
    ):
        count_indexed_images(open_store(store_uri))


def test_damaged_index_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write(store, hexadecimal(100))
    content = bytearray(store.read(image_ids_key(0)))
    content[len(content) // 2] ^= 1
    store.replace(image_ids_key(0), bytes(content))
    with pytest.raises(BadInput, match="is damaged"):
        count_indexed_images(store)


@pytest.mark.parametrize(
    ("columns", "pieces"),
    [
        ({"image_id": [b"a" * 16]}, None),
        ({"image_id": [b"a" * 16]}, b"0"),
        ({"image_id": [b"a" * 16]}, b"-1"),
        ({"image_id": [b"a" * 16]}, b"99999999999999"),
        ({"image_id": [b"a" * 16]}, b"many"),
        ({"image_id": [b"a" * 15]}, b"1"),
        ({"image_id": [1]}, b"1"),
        ({"image_id": [None]}, b"1"),
        ({"other": [b"a" * 16]}, b"1"),
    ],
)
def test_other_tables_are_no_index(
    tmp_path: Path, columns: dict[str, list[object]], pieces: bytes | None
) -> None:
    store = open_store(str(tmp_path))
    metadata = None if pieces is None else {CHUNK_COUNT_METADATA: pieces}
    store.replace(image_ids_key(0), to_parquet(pa.table(columns).replace_schema_metadata(metadata)))
    with pytest.raises(BadInput, match=r"00000\.parquet: is no piece of an index"):
        count_indexed_images(store)
