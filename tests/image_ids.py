"""Image ids, and a run that holds them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from imagekiln.steps.runs.commits import create_commit, read_head
from imagekiln.steps.runs.manifest import write_manifest
from imagekiln.steps.storage.store import Store

EDGES = ("00" * 16, "ff" * 16, "00" * 15 + "01", "ab" + "00" * 15, "7f" * 16, "80" + "00" * 15)


def hexadecimal(count: int, seed: int = 7) -> list[str]:
    """Ids as digits, no two the same, the first ones at the edges of ranges."""
    random = np.random.default_rng(seed).bytes(16 * count)
    ids = [random[16 * index : 16 * (index + 1)].hex() for index in range(count)]
    return [*EDGES, *ids][:count]


def write(store: Store, statuses: dict[str, str]) -> None:
    """Commit manifests of two shards with the statuses of these images."""
    rows = [{"image_id": image_id, "status": status} for image_id, status in statuses.items()]
    schema = pa.schema([pa.field("image_id", pa.string()), pa.field("status", pa.string())])
    shards = (rows[::2], rows[1::2])
    keys = [
        write_manifest(store, number, pa.Table.from_pylist(shard, schema))
        for number, shard in enumerate(shards)
    ]
    head = read_head(store)
    create_commit(store, head, replace(head.commit, manifests=tuple(keys)))
