import sqlite3
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.remembered import Remembered


def test_what_was_added_is_known_and_nothing_else(tmp_path: Path) -> None:
    known = Remembered(tmp_path / "known.sqlite")
    assert known.of(["a", "b"]) == {}
    known.add({"a": "one", "'; DROP TABLE known; --": "two"})
    known.add({})
    assert known.of(["a", "b", "'; DROP TABLE known; --"]) == {"a": "one", "'; DROP TABLE known; --": "two"}


def test_many_keys_are_asked_for_at_once(tmp_path: Path) -> None:
    known = Remembered(tmp_path / "known.sqlite")
    known.add({str(number): "x" for number in range(100_000)})
    assert len(known.of(map(str, range(50_000, 150_000)))) == 50_000


def test_a_disk_that_is_full_is_worth_another_try(tmp_path: Path) -> None:
    known = Remembered(tmp_path / "known.sqlite")
    known._base.execute("PRAGMA max_page_count = 3")
    with pytest.raises(TryAgain, match="planning ran out of disk"):
        known.add({str(number): "x" * 1000 for number in range(100)})
    known.close()
    with pytest.raises(sqlite3.ProgrammingError):
        known.of(["a"])
