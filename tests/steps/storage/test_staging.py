"""Replacements that wait until all of them are known."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import Missing, TryAgain
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.staging import StagedStore
from imagekiln.steps.storage.store import Store


@pytest.fixture
def store(store_uri: str) -> Store:
    """A store with two objects."""
    store = open_store(store_uri)
    store.replace("a/one", b"one")
    store.replace("two", b"two")
    return store


@pytest.fixture
def staged(store: Store, tmp_path: Path) -> StagedStore:
    """The same, with one object replaced, one written as it is, and one that is new."""
    folder = tmp_path / "staged"
    folder.mkdir()
    staged = StagedStore(store, folder)
    staged.replace("a/one", b"eins")
    staged.replace("two", b"two")
    staged.replace("a/three", b"drei")
    return staged


def test_replacement_that_a_cleaner_of_temporary_files_removed_is_to_be_made_again(
    staged: StagedStore, tmp_path: Path
) -> None:
    (tmp_path / "staged" / "a" / "one").unlink()
    with pytest.raises(TryAgain, match="clears temporary files"):
        staged.read("a/one")
    with pytest.raises(TryAgain, match="clears temporary files"):
        staged.read_prefix("a/one", 2)
    with pytest.raises(TryAgain, match="clears temporary files"):
        staged.publish(["a/one"])


def test_replacements_are_read_before_the_store_has_them(store: Store, staged: StagedStore) -> None:
    assert [staged.read(key) for key in ("a/one", "two", "a/three")] == [b"eins", b"two", b"drei"]
    with staged.open("a/one") as file:
        assert file.read() == b"eins"
    with staged.open("two") as file:
        assert file.read() == b"two"
    assert [staged.read_prefix(key, 2) for key in ("a/one", "two")] == [b"ei", b"tw"]
    assert [staged.exists(key) for key in ("a/three", "two", "four")] == [True, True, False]
    assert store.read("a/one") == b"one"
    assert not store.exists("a/three")


def test_only_what_differs_is_published(store: Store, staged: StagedStore) -> None:
    assert set(staged.staged_keys) == {"a/one", "a/three"}
    staged.replace("a/one", b"one")
    assert set(staged.staged_keys) == {"a/three"}
    staged.publish(staged.staged_keys)
    assert (store.read("a/one"), store.read("a/three")) == (b"one", b"drei")


def test_objects_are_created_and_removed_at_once(store: Store, staged: StagedStore) -> None:
    assert staged.create("four", b"vier")
    assert not staged.create("two", b"zwei")
    staged.remove("two")
    assert store.read("four") == b"vier"
    with pytest.raises(Missing, match=store.uri_of("two")):
        staged.read("two")
