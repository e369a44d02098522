"""SQL over files on this disk, by a DuckDB that keeps to a bounded share of memory and spills the rest."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa

from imagekiln.steps.errors import TryAgain, first_line
from imagekiln.steps.storage.failures import translate_errors

MEMORY_LIMIT = "192MiB"
STREAM_BUFFER_SIZE = "64MiB"  # less, and threads wait for one another where rows must stay in order
STREAM_ROWS = 16_384
MAX_THREADS = 4  # each holds blocks of its own, and many of them would hold all that there is
RESOURCE_ERRORS = ("Out of Memory Error", "IO Error")


class Database:
    """Tables for the time of one step. Raises TryAgain where disk or memory run out."""

    def __init__(self, folder: Path) -> None:
        """Open an empty database that spills into `folder`."""
        self._connection = duckdb.connect(
            config={
                "memory_limit": MEMORY_LIMIT,
                "threads": min(MAX_THREADS, os.cpu_count() or 1),
                "temp_directory": str(folder / "spill"),
                "autoload_known_extensions": False,
            }
        )
        self.execute("SET enable_progress_bar = false")
        self.execute(f"SET streaming_buffer_size = '{STREAM_BUFFER_SIZE}'")

    def close(self) -> None:
        """Let go of memory and disk."""
        self._connection.close()

    def register(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Let SQL read a stream, once, by this name."""
        self._connection.register(name, rows)

    def execute(self, sql: str) -> None:
        """Do what gives no rows."""
        with _translate_duckdb_errors():
            self._connection.execute(sql).fetchall()

    def fetch_table(self, sql: str) -> pa.Table:
        """Rows that fit in memory."""
        with _translate_duckdb_errors():
            return self._connection.sql(sql).to_arrow_table()

    def fetch_batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Any number of rows."""
        with _translate_duckdb_errors():
            yield from self._connection.sql(sql).to_arrow_reader(STREAM_ROWS)


@contextmanager
def _translate_duckdb_errors() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, OSError) as error:  # OSError: by way of Arrow
        said = first_line(str(error))
        if said.startswith(RESOURCE_ERRORS):
            raise TryAgain(f"planning ran out of disk or memory ({said}). Free some.") from error
        raise RuntimeError(said) from error


# Settings, which repeat, shrink to nothing, and what does not shrink costs next to no time.
ARROW_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def write_arrow_file(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Write one batch or more. Raises TryAgain where the disk is full."""
    first = next(batches)
    with (
        translate_errors(str(path)),
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, first.schema, options=ARROW_WRITE_OPTIONS) as writer,
    ):
        for batch in chain([first], batches):
            writer.write_batch(batch)


@contextmanager
def open_arrow_file(
    path: Path, columns: Sequence[int] = ()
) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """The file for reading batches by their number: of all columns, or of those at some places."""
    options = pa.ipc.IpcReadOptions(included_fields=[*columns])
    with (
        translate_errors(str(path)),
        pa.OSFile(str(path)) as file,
        pa.ipc.open_file(file, options=options) as reader,
    ):
        yield reader


def read_arrow_batches(path: Path, columns: Sequence[int] = ()) -> Iterator[pa.RecordBatch]:
    """Every batch, in the order in which they were written."""
    with open_arrow_file(path, columns) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def arrow_stream_reader(path: Path, columns: Sequence[str]) -> pa.RecordBatchReader:
    """The columns of these names, for whoever takes a stream of Arrow's. They are in the order of the file."""
    with open_arrow_file(path) as file:
        places = sorted(file.schema.get_field_index(name) for name in columns)
        schema = pa.schema([file.schema.field(place) for place in places])
    return pa.RecordBatchReader.from_batches(schema, read_arrow_batches(path, places))
