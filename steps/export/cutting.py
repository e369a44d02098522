"""Cutting rows into files of a wanted size, and writing down what goes into each."""

import hashlib
import math
import tarfile
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.layout import data_key, file_rows_key
from imagekiln.steps.export.plan import MAX_FILES, ExportFile
from imagekiln.steps.export.selection import Partition
from imagekiln.steps.export.settings import ExportSettings, FileFormat
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage.store import Store

MAX_FILE_ROWS = 2**17
MAX_ROWS_BYTES = 2**29  # of the rows of a file in memory, besides its images
SAMPLE_MEMBERS = 3  # of a tar: image, JSON with the row, and prompt
MEMBER_BYTES = 2 * tarfile.BLOCKSIZE  # a header, and what fills the last block
JSON_NAME_BYTES = 12  # quotes, colon, comma, and what its value has more than in memory
FILE_SUFFIXES = {"parquet": ".parquet", "webdataset": ".tar"}
Weights = npt.NDArray[np.int64]


def write_partition(
    store: Store, partition: Partition, settings: ExportSettings, first: int
) -> list[ExportFile]:
    """Write the rows of each file of a partition, the first of which has the number `first`.

    The same rows give the same objects, so that what a killed plan has written is used again.
    """
    planned = list[tuple[int, int, str]]()
    files = cut_rows(partition.tables, settings.file_bytes, settings.format)
    for number, rows in enumerate(files, first):
        if number == MAX_FILES:
            raise BadInput(
                f"an export has at most {MAX_FILES} files, and this one would have more. "
                "Choose a larger file size."
            )
        content = to_parquet(rows)
        sha256 = hashlib.sha256(content).hexdigest()
        store.create(file_rows_key(number, sha256), content)
        image_bytes = pc.sum(rows["byte_size"])
        planned.append((rows.num_rows, image_bytes.as_py(), sha256))

    suffix = FILE_SUFFIXES[settings.format]
    return [
        ExportFile(data_key(partition.folder, index, len(planned), suffix), *facts)
        for index, facts in enumerate(planned)
    ]


def cut_rows(tables: Iterator[pa.Table], file_bytes: int, kind: FileFormat) -> Iterator[pa.Table]:
    """The rows of each file: as many as fit into it, at least one."""
    pending = list[pa.Table]()
    weights = list[Weights]()
    total = 0
    for table in tables:
        pending.append(table)
        weights.append(_weigh(table, file_bytes, kind))
        total += weights[-1].sum()
        if total <= file_bytes:
            continue

        rows = pa.concat_tables(pending)
        (joined,) = weights = [np.concatenate(weights)]
        while joined.sum() > file_bytes:
            fitting = np.searchsorted(joined.cumsum(), file_bytes, side="right")
            count = max(1, int(fitting))
            yield rows.slice(0, count).combine_chunks()
            rows = rows.slice(count)
            joined = joined[count:]
        pending, weights, total = [rows], [joined], joined.sum()

    if total:
        yield pa.concat_tables(pending).combine_chunks()


def _weigh(rows: pa.Table, file_bytes: int, kind: FileFormat) -> Weights:
    """What each row takes of the `file_bytes` of a file: by bytes, as a row, and as a long one."""
    row_bytes = math.ceil(rows.nbytes / rows.num_rows)
    by_count = math.ceil(file_bytes / MAX_FILE_ROWS)
    by_length = math.ceil(row_bytes * file_bytes / MAX_ROWS_BYTES)
    image_bytes: Weights = rows["byte_size"].to_numpy()
    return np.maximum(
        image_bytes + _stored_bytes(rows, row_bytes, kind),
        max(by_count, by_length),
    )


def _stored_bytes(rows: pa.Table, row_bytes: int, kind: FileFormat) -> int:
    """About the most that a file has of a row besides its image; Parquet has it compressed."""
    if kind == "parquet":
        return row_bytes
    names = sum(len(name) + JSON_NAME_BYTES for name in rows.column_names)
    return names + 2 * row_bytes + MEMBER_BYTES * SAMPLE_MEMBERS
