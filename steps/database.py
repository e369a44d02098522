"""A DuckDB that keeps to a bounded share of memory and puts the rest on this disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from imagekiln.steps.errors import TryAgain

MEMORY = "256MiB"
STREAM_ROWS = 16_384


class Database:
    """Tables for the time of one step. Raises TryAgain where disk or memory run out."""

    def __init__(self, folder: Path) -> None:
        """Open an empty database that spills into `folder`."""
        # In memory, so that what does not fit is spilled as it is: a database file would be compressed and checked.
        self._connection = duckdb.connect(
            config={
                "memory_limit": MEMORY,
                "temp_directory": str(folder / "spill"),
                "autoload_known_extensions": False,
            }
        )
        self.run("SET enable_progress_bar = false")

    def close(self) -> None:
        """Let go of memory and disk."""
        self._connection.close()

    def run(self, sql: str) -> None:
        """Do what gives no rows."""
        with _told():
            self._connection.execute(sql).fetchall()

    def take(self, rows: pa.RecordBatchReader, sql: str) -> None:
        """Do what reads the stream `rows`, under the name of `input`."""
        self._connection.register("input", rows)
        try:
            self.run(sql)
        finally:
            self._connection.unregister("input")

    def table(self, sql: str) -> pa.Table:
        """Rows that fit in memory."""
        with _told():
            return self._connection.sql(sql).to_arrow_table()

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Any number of rows."""
        with _told():
            yield from self._connection.sql(sql).to_arrow_reader(STREAM_ROWS)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise TryAgain(
            f"planning ran out of disk or memory ({str(error).splitlines()[0]}). Free some."
        ) from error
