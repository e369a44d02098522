"""The rows of an export: read from its source, sorted into folders, and cut into files.

Memory holds the rows of few shards: those that a column sorts into folders wait on this machine's
disk.
"""

import math
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.dataset import IMAGE_COLUMN, Dataset
from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.layout import partition_folder
from imagekiln.steps.export.settings import ExportSettings
from imagekiln.steps.job.output import ExportFormat
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import read_arrow_batches

READERS = 2
REQUIRED_COLUMNS = ("image_id", "prompt", "byte_size", "sha256")  # of the rows, besides places
MAX_PARTITIONS = 500  # each has an open file while the images are sorted into them
CONSTANT_COLUMNS = ("status", "error")  # the same for every image that is ok
MAX_FILE_ROWS = 2**17
SAMPLE_MEMBERS = 3  # of a tar: image, JSON with the row, and prompt
MEMBER_BYTES = 2 * tarfile.BLOCKSIZE  # a header, and what fills the last block
JSON_NAME_BYTES = 12  # quotes, colon, comma, and what its value has more than in memory
FOLDER_PICTURES = 1000


def exported_columns(known: Sequence[str], settings: ExportSettings) -> list[str]:
    """The columns of the rows to plan: those chosen, or all, and those that are always needed."""
    names = [*known]
    if settings.columns is not None:
        names = [*REQUIRED_COLUMNS, settings.newest_by, *settings.columns]
    left_out = {IMAGE_COLUMN, *CONSTANT_COLUMNS, *LOCATION_SCHEMA.names}
    columns = [name for name in names if name not in left_out]
    columns += LOCATION_SCHEMA.names
    return list(dict.fromkeys(columns))


def iter_partitions(
    tables: Iterator[pa.Table], schema: pa.Schema, column: str | None
) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """The images of these tables by the values of a column, in the order of the folders' names.

    The folder is "" for all if there is no column. Raises BadInput if it has too many values.
    """
    if column is None:
        yield "", tables
        return
    with temporary_folder("imagekiln-export-") as folder:
        # Around the closing, too: to end a file writes to the disk.
        with translate_errors(folder), ExitStack() as open_files:
            paths = _sort(tables, schema, column, Path(folder), open_files)
        for name, path in sorted(paths.items()):
            yield name, (pa.Table.from_batches([batch]) for batch in read_arrow_batches(path))


def _sort(
    tables: Iterator[pa.Table],
    schema: pa.Schema,
    column: str,
    folder: Path,
    open_files: ExitStack,
) -> dict[str, Path]:
    """Append each row to a file for its value, and return the files by the values' folders."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    writers: dict[str, pa.ipc.RecordBatchFileWriter] = {}
    paths: dict[str, Path] = {}
    for table in tables:
        values = table[column]
        for value in values.unique():
            is_equal = pc.equal(values, value) if value.is_valid else pc.is_null(values)
            name = partition_folder(column, value.as_py())
            if name not in writers:
                if len(writers) == MAX_PARTITIONS:
                    raise BadInput(
                        f"column {column!r}: has more than {MAX_PARTITIONS} values, and each would "
                        "be a folder. Choose another column to partition by."
                    )
                path = folder / f"{len(writers)}.arrow"
                paths[name] = path
                file = open_files.enter_context(pa.OSFile(str(path), "wb"))
                writer = pa.ipc.new_file(file, schema, options=options)
                writers[name] = open_files.enter_context(writer)
            writers[name].write_table(table.filter(is_equal))
    return paths


def iter_rows(dataset: Dataset, run_ids: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The images of a dataset, shard by shard, with the columns of this schema.

    `run_ids` are those of the dataset's runs: `part` is then the key of an image's object under the
    output. A column that the dataset lacks is null.
    """
    shards = list[tuple[int, int]]()
    for number, run in enumerate(dataset.runs):
        for shard in range(len(run.shard_images)):
            shards.append((number, shard))

    def read(index: int) -> pa.Table:
        run, shard = shards[index]
        rows = dataset.read_rows(run, shard)
        return _with_schema(_with_run_id(rows, run_ids[run]), schema)

    for table in map_ordered(read, len(shards), READERS):
        if table.num_rows:
            yield table


def _with_run_id(rows: pa.Table, run_id: str) -> pa.Table:
    """Rows of a run, with the keys of its parts under the output."""
    place = rows.schema.get_field_index("part")
    parts = pc.binary_join_element_wise(run_id, rows["part"], "/")
    return rows.set_column(place, "part", parts)


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of this schema: those that the rows lack are null."""
    table = pa.concat_tables(
        [schema.empty_table(), rows],
        promote_options="default",
    )
    return table.select(schema.names)


def require_partition_column(dataset: Dataset, column: str) -> None:
    """Raise BadInput unless the column of a dataset is text, integer or boolean."""
    if column not in dataset.columns:
        names = ", ".join(dataset.columns)
        raise BadInput(f"{dataset.uri}: has no column {column!r}. Its columns are {names}.")
    kind = dataset.schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise BadInput(
            f"column {column!r}: is {kind}, and only text, integers and booleans become folders. "
            "Choose another column to partition by."
        )


def cut_rows(tables: Iterator[pa.Table], file_bytes: int, kind: ExportFormat) -> Iterator[pa.Table]:
    """The rows of each file: as many as fit into it, at least one."""
    rows: pa.Table | None = None
    weights = np.zeros(0, np.int64)
    for table in tables:
        rows = pa.concat_tables([rows, table]) if rows else table
        weights = np.concatenate([weights, _weigh(table, file_bytes, kind)])
        while weights.sum() > file_bytes:
            fitting = np.searchsorted(weights.cumsum(), file_bytes, side="right")
            count = max(1, int(fitting))
            yield rows.slice(0, count).combine_chunks()
            rows = rows.slice(count)
            weights = weights[count:]
    if rows:
        yield rows.combine_chunks()


def _weigh(rows: pa.Table, file_bytes: int, kind: ExportFormat) -> npt.NDArray[np.int64]:
    """The share of each row in the `file_bytes` of a file. No file has more than the most rows."""
    if kind == "files":  # of which each image is a file of its own
        share = math.ceil(file_bytes / FOLDER_PICTURES)
        return np.full(rows.num_rows, share)
    row_bytes = math.ceil(rows.nbytes / rows.num_rows)
    if kind == "webdataset":  # Parquet has rows compressed, and names once
        row_bytes *= 2
        row_bytes += MEMBER_BYTES * SAMPLE_MEMBERS
        for name in rows.column_names:
            row_bytes += len(name) + JSON_NAME_BYTES
    image_bytes = rows["byte_size"].to_numpy()
    stored: npt.NDArray[np.int64] = image_bytes + row_bytes
    least = math.ceil(file_bytes / MAX_FILE_ROWS)
    return np.maximum(stored, least)
