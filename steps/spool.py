"""Record batches in a file on this disk: written once, in order, then read as often as needed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.store_errors import translate_errors

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
def open_arrow_file(path: Path, columns: Sequence[int] = ()) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """The file for reading batches by their number: of all columns, or of those at some places."""
    options = pa.ipc.IpcReadOptions(included_fields=[*columns])
    with translate_errors(str(path)), pa.OSFile(str(path)) as file, pa.ipc.open_file(file, options=options) as reader:
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
