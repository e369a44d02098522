"""External sort of image rows by group.

Rows are distributed over buckets on the local disk. Each bucket has one group, or fits in memory to
be sorted. Memory use does not depend on the number of rows and groups. DuckDB's sort fails at its
memory limit if prompts are long.
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
    """Yield rows ordered by group; within a group, rows keep the order of `batches`.

    GROUP_COLUMN has the index of a row's group. `sizes` are upper bounds of the rows per group.
    `folder` needs room for all rows.
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
    """Assign a bucket to each group. Small consecutive groups share one."""
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
    """Split each window by bucket, and append the index of each piece to `batches_of[bucket]`."""
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
