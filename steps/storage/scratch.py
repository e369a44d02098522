"""Scratch data of one step: SQL tables in DuckDB with bounded memory, and Arrow files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Condition
from typing import Any

import duckdb
import pyarrow as pa

from imagekiln.steps.errors import BadInput, TryAgain, first_line
from imagekiln.steps.storage.failures import translate_errors

MEMORY_LIMIT = "192MiB"
STREAM_BUFFER_SIZE = "64MiB"  # with less, threads of ordered queries block each other
STREAM_ROWS = 16_384
MAX_THREADS = 4  # each needs its own blocks, and many threads would fill the memory
RESOURCE_ERRORS = ("Out of Memory Error", "IO Error")
# For a time in the year 100,000,000, or a map with a repeated key.
VALUE_ERRORS = ("Conversion Error", "Invalid Input Error: Arrow map")


class Database:
    """SQL tables that exist during one step.

    Raises TryAgain if disk or memory run out, BadInput for a value that DuckDB cannot store.
    """

    def __init__(
        self,
        folder: Path,
        *,
        file: str = ":memory:",
        memory_limit: str = MEMORY_LIMIT,
        max_threads: int = MAX_THREADS,
    ) -> None:
        """Open an empty database that spills to `folder`, or keeps its tables in a file there."""
        self._idle = Condition()  # a connection with busy cursors cannot be closed
        self._queries = 0
        with _translate_duckdb_errors():
            self._connection = duckdb.connect(
                file if file == ":memory:" else folder / file,
                config={
                    "memory_limit": memory_limit,
                    "threads": min(max_threads, os.cpu_count() or 1),
                    "temp_directory": str(folder / "spill"),
                    "autoload_known_extensions": False,
                },
            )
        # In a notebook without ipywidgets, DuckDB refuses this setting, and shows no bar.
        with suppress(duckdb.InvalidInputException):
            self._connection.execute("SET enable_progress_bar = false")
        self.execute(f"SET streaming_buffer_size = '{STREAM_BUFFER_SIZE}'")

    def close(self) -> None:
        """Release memory and disk, once the queries of other threads have ended."""
        with self._idle:
            self._idle.wait_for(lambda: not self._queries)
            self._connection.close()

    def register(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Register a stream under this name, for one query."""
        self._connection.register(name, rows)

    def execute(self, sql: str) -> None:
        """Run a statement that returns no rows."""
        with _translate_duckdb_errors():
            self._connection.execute(sql).fetchall()

    def insert(self, sql: str, name: str, rows: pa.Table) -> None:
        """Run a statement that reads these rows under this name. Not thread-safe."""
        with _translate_duckdb_errors():
            self._connection.register(name, rows)
            self._connection.execute(sql)
            self._connection.unregister(name)

    def fetch_rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query with parameters, which must fit in memory. Thread-safe."""
        with self._idle:
            self._queries += 1
        try:
            with _translate_duckdb_errors(), self._connection.cursor() as cursor:
                return cursor.execute(sql, list(parameters)).fetchall()
        finally:
            with self._idle:
                self._queries -= 1
                self._idle.notify_all()

    def fetch_table(self, sql: str) -> pa.Table:
        """Return all rows of a query, which must fit in memory."""
        with _translate_duckdb_errors():
            return self._connection.sql(sql).to_arrow_table()

    def fetch_batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, of any size."""
        with _translate_duckdb_errors():
            yield from self._connection.sql(sql).to_arrow_reader(STREAM_ROWS)


@contextmanager
def _translate_duckdb_errors() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, OSError) as error:  # an OSError if Arrow passed the error on
        message = first_line(str(error))
        if message.startswith(RESOURCE_ERRORS):
            raise TryAgain(
                f"DuckDB ran out of disk or memory ({message}). "
                "Free some and run the command again."
            ) from error
        if message.startswith(VALUE_ERRORS):
            raise BadInput(
                f"a column has a value that no table can hold ({message}). Correct the value, or "
                "do not carry the column."
            ) from error
        raise RuntimeError(message) from error


def write_arrow_file(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Write at least one batch. Raises TryAgain if the disk is full."""
    first = next(batches)
    with (
        translate_errors(str(path)),
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, first.schema) as writer,
    ):
        for batch in chain([first], batches):
            writer.write_batch(batch)


@contextmanager
def open_arrow_file(
    path: Path, columns: Sequence[int] = ()
) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """Open the file for random access to batches, with the columns at these indices or all."""
    options = pa.ipc.IpcReadOptions(included_fields=[*columns])
    with (
        translate_errors(str(path)),
        pa.OSFile(str(path)) as file,
        pa.ipc.open_file(file, options=options) as reader,
    ):
        yield reader


def read_arrow_batches(path: Path, columns: Sequence[int] = ()) -> Iterator[pa.RecordBatch]:
    """Yield every batch in the order of writing."""
    with open_arrow_file(path, columns) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def arrow_stream_reader(path: Path, columns: Sequence[str]) -> pa.RecordBatchReader:
    """Build a stream of the columns with these names, in the order of the file."""
    with open_arrow_file(path) as file:
        indices = sorted(file.schema.get_field_index(name) for name in columns)
        schema = pa.schema([file.schema.field(index) for index in indices])
    return pa.RecordBatchReader.from_batches(schema, read_arrow_batches(path, indices))
