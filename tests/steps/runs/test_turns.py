"""Whose turn it is to replace the objects of a run."""

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.storage import open_store


def test_the_last_to_begin_writes_and_the_others_write_nothing_more(store_uri: str) -> None:
    store = open_store(store_uri)
    first = TurnStore(store)
    first.replace("manifest", b"old")
    second = TurnStore(store)
    second.replace("manifest", b"new")
    for write in (
        lambda: first.replace("manifest", b"older"),
        lambda: first.create("plan", b"x"),
        lambda: first.remove("manifest"),
    ):
        with pytest.raises(TryAgain, match="another process has begun to aggregate"):
            write()
    assert first.read("manifest") == b"new"
    assert not store.exists("plan")
    assert second.create("plan", b"x")
    third = TurnStore(store)
    third.remove("plan")
    with pytest.raises(TryAgain):
        second.replace("manifest", b"newer")
