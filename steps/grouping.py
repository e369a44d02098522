"""Rows brought together by group: distributed over buckets on this disk, each of one group or small enough to sort.

The memory is that of one bucket, whatever the number of rows and groups; a sort in DuckDB, which keeps to its limit
by giving up, does not get through long texts.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKET_ROWS = 32_768
WINDOW_BYTES = 32 * 2**20
Numbers = npt.NDArray[np.int64]


def by_group(
    batches: Iterator[pa.RecordBatch], column: str, groups: Mapping[str, int], folder: Path
) -> Iterator[pa.RecordBatch]:
    """The rows of one group after the other, each group's in the order they come in, without `column`, its name.

    `groups` tells the number of rows of each, in the order wanted. `folder` needs room for all rows.
    """
    path = str(folder / "by-group.arrow")
    bucket_of = _bucket_of([*groups.values()])
    numbers = {name: number for number, name in enumerate(groups)}
    runs = _distribute(path, (_numbered(window, column, numbers) for window in _windows(batches)), bucket_of)
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as spool:
        for run, groups_in_it in zip(runs, np.bincount(bucket_of), strict=True):
            pieces = (spool.get_batch(number) for number in run)
            for piece in pieces if groups_in_it == 1 else [_sorted(_joined([*pieces]))]:
                yield piece.drop_columns(["group"])


def _bucket_of(sizes: list[int]) -> Numbers:
    """The bucket of each group: neighbours share one while they fit."""
    buckets, bucket, filled = [], 0, 0
    for size in sizes:
        if filled and filled + size > BUCKET_ROWS:
            bucket, filled = bucket + 1, 0
        buckets.append(bucket)
        filled += size
    return np.array(buckets)


def _distribute(path: str, windows: Iterator[pa.RecordBatch], bucket_of: Numbers) -> list[list[int]]:
    """Write the rows, and tell for each bucket the numbers of the batches that hold its rows, in order."""
    runs: list[list[int]] = [[] for _ in range(bucket_of[-1] + 1)]
    first, written = next(windows), 0
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, first.schema) as spool:
        for window in chain([first], windows):
            buckets = bucket_of[window["group"].to_numpy()]
            order = np.argsort(buckets, kind="stable")
            window = window.take(pa.array(order))
            there, starts = np.unique(buckets[order], return_index=True)
            for bucket, start, end in zip(there, starts, [*starts[1:], len(order)], strict=True):
                spool.write_batch(window.slice(start, end - start))
                runs[bucket].append(written)
                written += 1
    return runs


def _windows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) > WINDOW_BYTES:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _numbered(window: pa.RecordBatch, column: str, numbers: Mapping[str, int]) -> pa.RecordBatch:
    """The window with each row's group as a number, in place of its name."""
    names = window[column].dictionary_encode()
    known = np.array([numbers[name] for name in names.dictionary.to_pylist()], dtype=np.int64)
    return window.drop_columns([column]).append_column("group", pa.array(known[names.indices.to_numpy()]))


def _sorted(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(np.argsort(rows["group"].to_numpy(), kind="stable")))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.Table.from_batches(batches).to_struct_array().combine_chunks())
