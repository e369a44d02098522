"""Rows brought together by group: distributed over buckets on this disk, each of one group or small enough to sort.

The memory is that of one bucket, whatever the number of rows and groups; a sort in DuckDB, which keeps to its limit
by giving up, does not get through long texts.
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
Int64Array = npt.NDArray[np.int64]
GroupKey = tuple[object, ...]


def order_by_group(
    batches: Iterator[pa.RecordBatch],
    columns: Sequence[str],
    groups: Mapping[GroupKey, int],
    folder: Path,
) -> Iterator[pa.RecordBatch]:
    """The rows of one group after the other, each group's in the order they come in.

    A group is what its rows have in `columns`. `groups` tells the number of rows of each, in the order wanted.
    `folder` needs room for all rows.
    """
    path = folder / "by-group.arrow"
    bucket_of = _assign_buckets([*groups.values()])
    numbers = {key: number for number, key in enumerate(groups)}
    runs: list[list[int]] = [[] for _ in range(bucket_of[-1] + 1)]
    numbered = (_with_group_numbers(window, columns, numbers) for window in _merge_batches(batches))
    with closing(
        prefetch(_distribute(numbered, bucket_of, runs), PREFETCH_BATCHES, QueueWaits())
    ) as pieces:
        write_arrow_file(path, pieces)
    with open_arrow_file(path) as file:
        for run, groups_in_it in zip(runs, np.bincount(bucket_of), strict=True):
            there = (file.get_batch(number) for number in run)
            for piece in (
                there if groups_in_it == 1 else [_sort_by_group(_concat_batches([*there]))]
            ):
                yield piece.drop_columns(["group"])


def _assign_buckets(sizes: list[int]) -> Int64Array:
    """The bucket of each group: neighbours share one while they fit."""
    buckets, bucket, filled = [], 0, 0
    for size in sizes:
        if filled and filled + size > ROWS_PER_BUCKET:
            bucket, filled = bucket + 1, 0
        buckets.append(bucket)
        filled += size
    return np.array(buckets)


def _distribute(
    windows: Iterator[pa.RecordBatch], bucket_of: Int64Array, runs: list[list[int]]
) -> Iterator[pa.RecordBatch]:
    """Each window cut up by bucket. `runs` is told which of the pieces are whose."""
    made = 0
    for window in windows:
        buckets = bucket_of[window["group"].to_numpy()]
        order = np.argsort(buckets, kind="stable")
        there, starts = np.unique(buckets[order], return_index=True)
        ordered = window.take(pa.array(order))
        for bucket, start, end in zip(there, starts, [*starts[1:], len(order)], strict=True):
            runs[bucket].append(made)
            made += 1
            yield ordered.slice(start, end - start)


def _merge_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) > WINDOW_BYTES:
            yield _concat_batches(held)
            held = []
    if held:
        yield _concat_batches(held)


def _with_group_numbers(
    window: pa.RecordBatch, columns: Sequence[str], numbers: Mapping[GroupKey, int]
) -> pa.RecordBatch:
    """The window with the number of each row's group."""
    codes = np.zeros(len(window), np.int64)
    for name in columns:
        if window[name].null_count == len(window):
            continue
        values = window[name].dictionary_encode(null_encoding="encode")
        both = pa.array(codes * len(values.dictionary) + values.indices.to_numpy())
        codes = both.dictionary_encode().indices.to_numpy()
    # Codes are given in the order in which their groups appear.
    first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
    keys = window.select([*columns]).take(pa.array(first)).to_pylist()
    known = np.array([numbers[tuple(key.values())] for key in keys], dtype=np.int64)
    return window.append_column("group", pa.array(known[codes]))


def _sort_by_group(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(np.argsort(rows["group"].to_numpy(), kind="stable")))


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(
        pa.Table.from_batches(batches).to_struct_array().combine_chunks()
    )


class SortedStream:
    """A stream of numbers that rise."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Take the stream, whose only column is `number`."""
        self._batches = batches
        self._ahead = np.empty(0, np.int64)

    def contains(self, numbers: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of these numbers, which rise and are larger than all asked for before, is in the stream."""
        if not len(numbers):
            return np.empty(0, np.bool_)
        read = [self._ahead]
        while not (len(read[-1]) and read[-1][-1] > numbers[-1]) and (
            batch := next(self._batches, None)
        ):
            read.append(batch["number"].to_numpy())
        there = np.concatenate(read)
        passed = np.searchsorted(there, numbers[-1], side="right")
        self._ahead = there[passed:]
        return np.isin(numbers, there[:passed], assume_unique=True)
