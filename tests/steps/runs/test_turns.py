"""Whose turn it is to replace the objects of a run."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs.keys import turn_key
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


def test_process_frozen_between_its_look_and_its_write_replaces_nothing_newer(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_bucket)
    store.replace("manifest", b"old")
    zombie = TurnStore(store)
    require_turn = zombie.require_turn
    looks: list[bool] = []

    def look_and_freeze() -> None:
        require_turn()
        if not looks:
            looks.append(True)
            TurnStore(store).replace("manifest", b"new")

    monkeypatch.setattr(zombie, "require_turn", look_and_freeze)
    with pytest.raises(TryAgain, match="another process has begun"):
        zombie.replace("manifest", b"stale")
    assert store.read("manifest") == b"new"


def test_turn_ends_with_the_run_that_it_was_taken_in(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    zombie = TurnStore(store)
    store.remove(turn_key(0))  # somebody removes the run, and somebody else plans it again
    TurnStore(store).replace("manifest", b"new")
    with pytest.raises(TryAgain, match="another process has begun"):
        zombie.remove("manifest")
    assert store.read("manifest") == b"new"
