import sqlite3
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.plan.input_images import DiskCache


def test_what_was_added_is_known_and_nothing_else(tmp_path: Path) -> None:
    known = DiskCache(tmp_path / "known.sqlite")
    assert known.get_many(["a", "b"]) == {}
    known.add_many({"a": "one", "'; DROP TABLE known; --": "two"})
    known.add_many({})
    assert known.get_many(["a", "b", "'; DROP TABLE known; --"]) == {
        "a": "one",
        "'; DROP TABLE known; --": "two",
    }


def test_many_keys_are_asked_for_at_once(tmp_path: Path) -> None:
    known = DiskCache(tmp_path / "known.sqlite")
    known.add_many({str(number): "x" for number in range(100_000)})
    assert len(known.get_many(map(str, range(50_000, 150_000)))) == 50_000


def test_a_disk_that_is_full_is_worth_another_try(tmp_path: Path) -> None:
    known = DiskCache(tmp_path / "known.sqlite")
    known._base.execute("PRAGMA max_page_count = 3")
    with pytest.raises(TryAgain, match="planning ran out of disk"):
        known.add_many({str(number): "x" * 1000 for number in range(100)})
    known.close()
    with pytest.raises(sqlite3.ProgrammingError):
        known.get_many(["a"])
