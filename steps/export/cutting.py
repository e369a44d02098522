"""Cutting rows into files of a wanted size."""

import math
import tarfile
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.job.output import ExportFormat

MAX_FILE_ROWS = 2**17
SAMPLE_MEMBERS = 3  # of a tar: image, JSON with the row, and prompt
MEMBER_BYTES = 2 * tarfile.BLOCKSIZE  # a header, and what fills the last block
JSON_NAME_BYTES = 12  # quotes, colon, comma, and what its value has more than in memory
FOLDER_PICTURES = 1000
Weights = npt.NDArray[np.int64]


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


def _weigh(rows: pa.Table, file_bytes: int, kind: ExportFormat) -> Weights:
    """What each row takes of the `file_bytes` of a file: at least its share of the most rows."""
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
    stored: Weights = image_bytes + row_bytes
    least = math.ceil(file_bytes / MAX_FILE_ROWS)
    return np.maximum(stored, least)
