"""Image rows ordered by group.

Rows are distributed over buckets on this disk, each of one group or small enough to sort in memory.
The memory is that of one bucket, whatever the number of rows and groups; DuckDB's sort, which keeps
to its limit by giving up, cannot sort long texts.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.runtime.prefetch import QueueWaits, prefetch
from imagekiln.steps.storage.scratch import open_arrow_file, write_arrow_file

ROWS_PER_BUCKET = 32_768
WINDOW_BYTES = 16 * 2**20
PREFETCH_BATCHES = 4
GROUP_COLUMN = "group"
Int64Array = npt.NDArray[np.int64]


def order_by_group(
    batches: Iterator[pa.RecordBatch], sizes: Sequence[int], folder: Path
) -> Iterator[pa.RecordBatch]:
    """The rows of one group after the other, each group in the order of `batches`.

    GROUP_COLUMN has the number of a row's group, `sizes` at most the rows of each. `folder` needs
    room for all rows.
    """
    path = folder / "by-group.arrow"
    buckets = _assign_buckets(sizes)
    group_counts = np.bincount(buckets)
    batches_of: list[list[int]] = [[] for _ in group_counts]
    pieces = _distribute(_merge(batches), buckets, batches_of)
    with closing(prefetch(pieces, PREFETCH_BATCHES, QueueWaits())) as ahead:
        write_arrow_file(path, ahead)
    with open_arrow_file(path) as file:
        for batch_numbers, groups in zip(batches_of, group_counts, strict=True):
            bucket = map(file.get_batch, batch_numbers)
            yield from bucket if groups == 1 else _sort_bucket([*bucket])


def _sort_bucket(bucket: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if bucket:
        rows = _concat(bucket)
        order = np.argsort(rows[GROUP_COLUMN].to_numpy(), kind="stable")
        yield rows.take(pa.array(order))


def _assign_buckets(sizes: Sequence[int]) -> Int64Array:
    """The bucket of each group; small neighbors share one."""
    buckets = []
    bucket = 0
    rows = 0
    for size in sizes:
        if rows and rows + size > ROWS_PER_BUCKET:
            bucket += 1
            rows = 0
        buckets.append(bucket)
        rows += size
    return np.array(buckets)


def _distribute(
    windows: Iterator[pa.RecordBatch], bucket_of: Int64Array, batches_of: list[list[int]]
) -> Iterator[pa.RecordBatch]:
    """Cut each window by bucket, and add the number of each piece to `batches_of`."""
    count = 0
    for window in windows:
        groups = window[GROUP_COLUMN].to_numpy()
        buckets = bucket_of[groups]
        order = np.argsort(buckets, kind="stable")
        present, starts = np.unique(buckets[order], return_index=True)
        ends = [*starts[1:], len(order)]
        ordered = window.take(pa.array(order))
        for bucket, start, end in zip(present, starts, ends, strict=True):
            batches_of[bucket].append(count)
            count += 1
            yield ordered.slice(start, end - start)


def _merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size > WINDOW_BYTES:
            yield _concat(waiting)
            waiting = []
            size = 0
    if waiting:
        yield _concat(waiting)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches).to_struct_array().combine_chunks()
    return pa.RecordBatch.from_struct_array(rows)
