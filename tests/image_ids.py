"""Image ids, and the index of a run that holds them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from imagekiln.steps.runs.image_id_index import (
    IdArray,
    RunImageIds,
    read_index_chunk,
    write_image_index,
)
from imagekiln.steps.storage.store import Store

EDGES = ("00" * 16, "ff" * 16, "00" * 15 + "01", "ab" + "00" * 15, "7f" * 16, "80" + "00" * 15)


def hexadecimal(count: int, seed: int = 7) -> list[str]:
    """Ids as digits, no two the same, the first ones at the edges of ranges."""
    random = np.random.default_rng(seed).bytes(16 * count)
    ids = [random[16 * index : 16 * (index + 1)].hex() for index in range(count)]
    return [*EDGES, *ids][:count]


def write(store: Store, ids: list[str], failed: int = 0) -> None:
    """Index these images as two shards; the last `failed` of them are not ok."""
    status = ["ok"] * (len(ids) - failed) + ["failed"] * failed
    manifest = pa.table(
        {"image_id": pa.array(ids, pa.string()), "status": pa.array(status, pa.string())}
    )
    half = len(ids) // 2
    with RunImageIds(len(ids)) as image_ids:
        image_ids.add(manifest.slice(0, half))
        image_ids.add(manifest.slice(half))
        write_image_index(store, image_ids)


def iter_index_chunks(store: Store) -> Iterator[IdArray]:
    """Every chunk of a run's index, in order."""
    number = 0
    count = 1
    while number < count:
        ids, count = read_index_chunk(store, number)
        yield ids
        number += 1
