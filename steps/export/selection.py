"""The images to export, in order: all that are ok of a run or of an output, and by partition.

However many there are, memory holds the rows of few shards: what a column sorts into folders waits
on this machine's disk.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.dataset import IMAGE_COLUMN, Dataset
from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.layout import partition_folder
from imagekiln.steps.export.plan import REQUIRED_COLUMNS
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import read_arrow_batches

READERS = 2
MAX_PARTITIONS = 500  # each has an open file while the images are sorted into them
# Of every image that is ok, the same.
CONSTANT_COLUMNS = ("status", "error")


@dataclass(frozen=True, slots=True)
class Partition:
    """Images that share a folder, which is "" where all do; tables of their rows, in order."""

    folder: str
    tables: Iterator[pa.Table]


def exported_columns(known: tuple[str, ...], chosen: tuple[str, ...] | None) -> list[str]:
    """The columns of the rows to plan: those chosen, or all, and those that are always needed."""
    names = known if chosen is None else (*REQUIRED_COLUMNS, *chosen)
    left_out = {
        IMAGE_COLUMN,
        *CONSTANT_COLUMNS,
        *LOCATION_SCHEMA.names,
    }
    columns = [name for name in names if name not in left_out]
    return list(dict.fromkeys([*columns, *LOCATION_SCHEMA.names]))


def iter_partitions(
    dataset: Dataset, run_ids: list[str], column: str | None
) -> Iterator[Partition]:
    """The images of a dataset by the values of a column, in the order of the folders' names.

    `run_ids` are those of the dataset's runs: `part` is then the key of an image's object under the
    output. Raises BadInput where the column has too many values, or is no text, integer or boolean.
    """
    tables = _iter_tables(dataset, run_ids)
    if column is None:
        yield Partition("", tables)
        return
    _require_partition_column(dataset, column)
    with temporary_folder("imagekiln-export-") as folder:
        # Around the closing, too: to end a file writes to the disk.
        with translate_errors(folder), ExitStack() as open_files:
            sorted_rows = _SortedRows(Path(folder), dataset.schema, open_files)
            for table in tables:
                sorted_rows.add(table, column)
        for name, path in sorted(sorted_rows.paths.items()):
            yield Partition(name, map(_to_table, read_arrow_batches(path)))


def _iter_tables(dataset: Dataset, run_ids: list[str]) -> Iterator[pa.Table]:
    shards = [
        (number, shard)
        for number, run in enumerate(dataset.runs)
        for shard in range(len(run.shard_images))
    ]

    def read(index: int) -> pa.Table:
        run, shard = shards[index]
        rows = dataset.read_rows(run, shard)
        column = rows.schema.get_field_index("part")
        parts = pc.binary_join_element_wise(run_ids[run], rows["part"], "/")
        return rows.set_column(column, rows.schema.field(column), parts)

    for table in map_ordered(read, len(shards), READERS):
        if table.num_rows:
            yield table


def _to_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _require_partition_column(dataset: Dataset, column: str) -> None:
    if column not in dataset.columns:
        names = ", ".join(dataset.columns)
        raise BadInput(f"{dataset.uri}: has no column {column!r}. Its columns are {names}.")
    if column == "image_id":
        raise BadInput(
            "column 'image_id': has another value for each image, and each would be a folder. "
            "Choose another column to partition by."
        )
    kind = dataset.schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise BadInput(
            f"column {column!r}: is {kind}, and only text, integers and booleans become folders. "
            "Choose another column to partition by."
        )


@dataclass(frozen=True, slots=True)
class _SortedRows:
    """Files on this disk, one for each partition, that rows are appended to."""

    folder: Path
    schema: pa.Schema
    open_files: ExitStack
    paths: dict[str, Path] = field(default_factory=dict)
    _writers: dict[str, pa.ipc.RecordBatchFileWriter] = field(default_factory=dict)

    def add(self, rows: pa.Table, column: str) -> None:
        """Append each row to the file of its value."""
        values = rows[column]
        for value in values.unique():
            is_equal = pc.equal(values, value) if value.is_valid else pc.is_null(values)
            folder = partition_folder(column, value.as_py())
            writer = self._open(folder, column)
            writer.write_table(rows.filter(is_equal))

    def _open(self, name: str, column: str) -> pa.ipc.RecordBatchFileWriter:
        if name in self._writers:
            return self._writers[name]
        if len(self._writers) == MAX_PARTITIONS:
            raise BadInput(
                f"column {column!r}: has more than {MAX_PARTITIONS} values, and each would be a "
                "folder. Choose another column to partition by."
            )
        path = self.folder / f"{len(self._writers)}.arrow"
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        file = self.open_files.enter_context(pa.OSFile(str(path), "wb"))
        writer = pa.ipc.new_file(file, self.schema, options=options)
        self.paths[name] = path
        self._writers[name] = self.open_files.enter_context(writer)
        return self._writers[name]
