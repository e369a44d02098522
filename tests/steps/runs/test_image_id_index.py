"""The index of a run's images, in chunks beside the manifest."""

from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs import image_id_index
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.image_id_index import read_index_chunk
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.image_ids import hexadecimal, read_index, write


def chunk_names(store: Store) -> tuple[str, ...]:
    """The chunks of the index, by the highest commit."""
    return read_head(store).commit.image_ids


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a hundred ids or so."""
    monkeypatch.setattr(image_id_index, "IDS_PER_CHUNK", 100)


def test_index_lists_the_images_that_are_ok_in_order(store_uri: str) -> None:
    store = open_store(store_uri)
    ids = hexadecimal(60)
    write(store, ids, failed=20)
    assert read_index(store) == sorted(ids[:40])


@pytest.mark.usefixtures("small_chunks")
def test_large_index_lies_in_chunks_each_a_range(store: Store) -> None:
    ids = hexadecimal(950)
    write(store, ids)
    names = chunk_names(store)
    assert read_index(store) == sorted(ids)
    assert len(names) == 10


@pytest.mark.parametrize("count", [0, 3])
def test_run_without_an_image_that_is_ok_has_an_index_too(store: Store, count: int) -> None:
    write(store, hexadecimal(count), failed=count)
    assert read_index(store) == []


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


def test_damaged_index_is_refused(store: Store) -> None:
    write(store, hexadecimal(100))
    (name,) = chunk_names(store)
    content = bytearray(store.read(name))
    content[len(content) // 2] ^= 1
    store.replace(name, bytes(content))
    with pytest.raises(BadInput, match="is damaged"):
        read_index(store)


def test_other_tables_are_no_index(store: Store) -> None:
    name = "image-ids/00000"
    store.replace(name, to_parquet(pa.table({"other": [b"a" * 16]})))
    with pytest.raises(BadInput, match=r"00000: is not a chunk of an image index"):
        read_index_chunk(store, name)
