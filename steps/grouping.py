"""Rows brought together by group: distributed over buckets on this disk, each of one group or small enough to sort.

Any number of rows and groups takes the memory of one bucket, which DuckDB's sort does not promise for long texts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BUCKET_ROWS = 32_768
WINDOW_BYTES = 32 * 2**20
Numbers = npt.NDArray[np.int64]


def by_group(
    batches: Iterator[pa.RecordBatch], column: str, groups: dict[str, int], folder: Path
) -> Iterator[pa.RecordBatch]:
    """The rows without `column`, which names each one's group: group after group, each in the order it came in.

    `groups` says how many rows each has, in the order wanted; `folder` needs room for all of them.
    """
    file, buckets = folder / "by-group.arrow", _buckets(groups)
    numbers = {name: number for number, name in enumerate(groups)}
    bucket_of = np.repeat(np.arange(len(buckets)), [len(bucket) for bucket in buckets])
    ...
