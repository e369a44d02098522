"""What was found out about many keys, in a file on this disk: any number of them in little memory."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from imagekiln.steps.errors import TryAgain


class DiskCache:
    """Texts by key. One thread at a time."""

    def __init__(self, path: Path) -> None:
        """Begin with none, in a new file."""
        # DuckDB asks for rows from threads of its own, one after the other.
        self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        for sql in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "CREATE TABLE known (key TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID",
        ):
            self._base.execute(sql)

    def get_many(self, keys: Iterable[str]) -> dict[str, str]:
        """The texts of those keys that have one. Raises TryAgain."""
        asked = json.dumps(list(keys))
        with _translate_errors():
            return dict(
                self._base.execute("SELECT key, text FROM known WHERE key IN (SELECT value FROM json_each(?))", [asked])
            )

    def add_many(self, texts: Mapping[str, str]) -> None:
        """Remember texts by new keys. Raises TryAgain where the disk is full."""
        with _translate_errors():
            self._base.execute("BEGIN")
            self._base.executemany("INSERT INTO known VALUES (?, ?)", texts.items())
            self._base.execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise TryAgain(f"planning ran out of disk ({error}). Free some space and run the command again.") from error
