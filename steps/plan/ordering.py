"""Image rows ordered by group, and streams of sorted numbers.

Rows are distributed over buckets on this disk, each of one group or small enough to sort in memory.
The memory is that of one bucket, whatever the number of rows and groups; DuckDB's sort, which keeps
to its limit by giving up, cannot sort long texts.
"""

from collections.abc import Iterator, Mapping, Sequence
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
GroupKey = tuple[object, ...]


def order_by_group(
    batches: Iterator[pa.RecordBatch],
    columns: Sequence[str],
    groups: Mapping[GroupKey, int],
    folder: Path,
) -> Iterator[pa.RecordBatch]:
    """The rows of one group after the other, each group in the order of `batches`.

    Rows of a group have equal values in `columns`. `groups` gives the number of rows of each, in
    order. `folder` needs room for all rows.
    """
    path = folder / "by-group.arrow"
    buckets = _assign_buckets([*groups.values()])
    numbers = {key: number for number, key in enumerate(groups)}
    bucket_count = buckets[-1] + 1
    batches_of: list[list[int]] = [[] for _ in range(bucket_count)]
    merged = _merge(batches)
    windows = (_with_group_numbers(window, columns, numbers) for window in merged)
    pieces = _distribute(windows, buckets, batches_of)
    prefetched = prefetch(pieces, PREFETCH_BATCHES, QueueWaits())
    with closing(prefetched) as ahead:
        write_arrow_file(path, ahead)
    group_counts = np.bincount(buckets)
    with open_arrow_file(path) as file:
        for number, batch_numbers in enumerate(batches_of):
            bucket = map(file.get_batch, batch_numbers)
            is_one_group = group_counts[number] == 1
            yield from _order_bucket(bucket, is_one_group=is_one_group)


def _order_bucket(
    bucket: Iterator[pa.RecordBatch], *, is_one_group: bool
) -> Iterator[pa.RecordBatch]:
    ordered = bucket
    if not is_one_group:
        rows = _concat([*bucket])
        groups = rows[GROUP_COLUMN].to_numpy()
        order = np.argsort(groups, kind="stable")
        sorted_rows = rows.take(pa.array(order))
        ordered = iter([sorted_rows])
    for batch in ordered:
        yield batch.drop_columns([GROUP_COLUMN])


def _assign_buckets(sizes: list[int]) -> Int64Array:
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


def _with_group_numbers(
    window: pa.RecordBatch, columns: Sequence[str], numbers: Mapping[GroupKey, int]
) -> pa.RecordBatch:
    codes = np.zeros(len(window), np.int64)
    for name in columns:
        column = window[name]
        if column.null_count == len(window):
            continue
        values = column.dictionary_encode(null_encoding="encode")
        combined = codes * len(values.dictionary) + values.indices.to_numpy()
        distinct = pa.array(combined).dictionary_encode()
        codes = distinct.indices.to_numpy()
    # Codes are numbered in the order in which they first appear.
    highest = np.maximum.accumulate(codes)
    steps_up = np.diff(highest, prepend=-1)
    first_rows = np.flatnonzero(steps_up)
    keys = window.select([*columns])
    keys = keys.take(pa.array(first_rows))
    number_of_code = []
    for key in keys.to_pylist():
        number = numbers[tuple(key.values())]
        number_of_code.append(number)
    numbers_by_code = np.array(number_of_code, dtype=np.int64)
    group = numbers_by_code[codes]
    return window.append_column(GROUP_COLUMN, pa.array(group))


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    rows = pa.Table.from_batches(batches).to_struct_array().combine_chunks()
    return pa.RecordBatch.from_struct_array(rows)


class SortedStream:
    """A stream of rising numbers."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Take the stream, whose only column is `number`."""
        self._batches = batches
        self._unread = np.empty(0, np.int64)

    def contains(self, numbers: Int64Array) -> npt.NDArray[np.bool_]:
        """Tell for each number if it is in the stream. Numbers rise, also from call to call."""
        if not len(numbers):
            return np.empty(0, np.bool_)
        last = numbers[-1]
        read = [self._unread]
        while not (len(read[-1]) and read[-1][-1] > last):
            batch = next(self._batches, None)
            if batch is None:
                break
            read.append(batch["number"].to_numpy())
        stream = np.concatenate(read)
        end = np.searchsorted(stream, last, side="right")
        self._unread = stream[end:]
        return np.isin(numbers, stream[:end], assume_unique=True)

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose `number` is in the stream."""
        numbers = rows["number"].to_numpy()
        is_wanted = self.contains(numbers)
        return rows.filter(pa.array(is_wanted))
