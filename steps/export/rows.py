"""Rows of an export: read from its source, sorted into folders, and split into files.

Memory holds the rows of a few shards. Rows that are sorted into folders wait on a local disk.
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

from imagekiln.steps.dataset.dataset import IMAGE_COLUMN, Dataset, open_dataset
from imagekiln.steps.dataset.runs import RunSource
from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.commits import partition_folder
from imagekiln.steps.export.settings import ExportSettings
from imagekiln.steps.export.triplets import EDITED_COLUMNS, count_inputs, require_free_names
from imagekiln.steps.job.output import ExportFormat
from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS
from imagekiln.steps.runs.tables import LOCATION_SCHEMA
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import read_arrow_batches

INPUT_BYTES = 2**21  # of an input image of triplets, about
REQUIRED_COLUMNS = ("image_id", "prompt", "byte_size", "sha256")  # in rows, besides locations
MAX_PARTITIONS = 500  # each has an open file during sorting
CONSTANT_COLUMNS = ("status", "error")  # the same for every image that is ok
MAX_FILE_ROWS = 2**17
SAMPLE_MEMBERS = 3  # in a tar: image, JSON with the row, and prompt
MEMBER_BYTES = 2 * tarfile.BLOCKSIZE  # a header, and the padding of the last block
JSON_NAME_BYTES = 12  # quotes, colon, comma, and the overhead of the value in JSON
FOLDER_PICTURES = 1000


def open_images(
    uri: str, settings: ExportSettings, first_schema: pa.Schema | None
) -> tuple[Dataset, pa.Schema]:
    """Open the images of a source, with the columns of the export, set by its first file.

    All files have the same columns, even if later runs have others. Raises BadInput if a column
    has another type.
    """
    known = open_dataset(uri, settings.columns).manifest_columns.names
    if first_schema is None:
        names = _chosen_columns(known, settings)
    else:
        names = [name for name in first_schema.names if name in known]
    dataset = open_dataset(uri, names, newest_by=settings.newest_by)
    schema = first_schema or dataset.schema
    for field in dataset.schema:
        first_type = schema.field(field.name).type
        if field.type != first_type:
            raise BadInput(
                f"column {field.name!r} was {first_type} in this export, and is {field.type} in "
                f"{uri}. Export to another destination, or without this column."
            )
    return dataset, schema


def _chosen_columns(known: Sequence[str], settings: ExportSettings) -> list[str]:
    """Return the columns to plan: the chosen ones or all, and those that are always needed."""
    names = [*known]
    if settings.columns is not None:
        names = [*REQUIRED_COLUMNS, settings.newest_by, *settings.columns]
    left_out = {IMAGE_COLUMN, *CONSTANT_COLUMNS, *LOCATION_SCHEMA.names}
    if settings.triplets:
        if DRAWN_SIZE_COLUMNS[0] in known:
            raise BadInput(
                "triplets: a pass changed the images after they were generated, so their prompts "
                "are not what was done to them. Edit by the job's model, not by a pass."
            )
        require_free_names(names)
        names += [name for name in EDITED_COLUMNS if name in known]
    columns = [name for name in names if name not in left_out]
    if settings.partition_by is not None:
        columns.append(settings.partition_by)
    columns += LOCATION_SCHEMA.names
    return list(dict.fromkeys(columns))


def iter_partitions(
    tables: Iterator[pa.Table], schema: pa.Schema, column: str | None
) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """Group the images of these tables by the values of a column, in the order of folder names.

    Without a column, all images are in the folder "". Raises BadInput if it has too many values.
    """
    if column is None:
        yield "", tables
        return
    with temporary_folder("imagekiln-export-") as folder:
        # Includes closing the files, which writes to disk.
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
    """Append each row to a file for its value, and return the files by folder."""
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


def iter_rows(dataset: Dataset, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a dataset, shard by shard, with the columns of this schema.

    `part` is the key of an image's object in the output. Missing columns are null.
    """
    for run, rows in dataset.iter_rows():
        if rows.num_rows:
            place = rows.schema.get_field_index("part")
            parts = pc.binary_join_element_wise(folder_of(run), rows["part"], "/")
            rows = rows.set_column(place, "part", parts)
            tables = [schema.empty_table(), rows.select(dataset.columns)]
            table = pa.concat_tables(tables, promote_options="default")
            yield table.select(schema.names)


def folder_of(run: RunSource) -> str:
    """Return the name of a run's folder in the output."""
    return run.uri.rpartition("/")[2]


def cut_rows(
    tables: Iterator[pa.Table], file_bytes: int, kind: ExportFormat, *, triplets: bool = False
) -> Iterator[pa.Table]:
    """Split rows into files, each with as many rows as fit, and at least one."""
    rows: pa.Table | None = None
    weights = np.zeros(0, np.int64)
    for table in tables:
        rows = pa.concat_tables([rows, table]) if rows else table
        added = _weigh(table, file_bytes, kind)
        if triplets:
            added += INPUT_BYTES * count_inputs(table)
        weights = np.concatenate([weights, added])
        while weights.sum() > file_bytes:
            fitting = np.searchsorted(weights.cumsum(), file_bytes, side="right")
            count = max(1, int(fitting))
            yield rows.slice(0, count).combine_chunks()
            rows = rows.slice(count)
            weights = weights[count:]
    if rows:
        yield rows.combine_chunks()


def _weigh(rows: pa.Table, file_bytes: int, kind: ExportFormat) -> npt.NDArray[np.int64]:
    """Return the size of each row in a file, in bytes, raised so that MAX_FILE_ROWS fill a file."""
    if kind == "files":  # each image is a file
        share = math.ceil(file_bytes / FOLDER_PICTURES)
        return np.full(rows.num_rows, share)
    row_bytes = math.ceil(rows.nbytes / rows.num_rows)
    if kind == "webdataset":  # Parquet compresses rows, and stores names once
        row_bytes *= 2
        row_bytes += MEMBER_BYTES * SAMPLE_MEMBERS
        names = sum(map(len, rows.column_names))
        row_bytes += names + JSON_NAME_BYTES * rows.num_columns
    image_bytes = rows["byte_size"].to_numpy()
    stored: npt.NDArray[np.int64] = image_bytes + row_bytes
    least = math.ceil(file_bytes / MAX_FILE_ROWS)
    return np.maximum(stored, least)
