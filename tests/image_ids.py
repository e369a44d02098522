"""Image ids, and the index of a run that holds them."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from imagekiln.steps.runs.commits import create_commit, read_head
from imagekiln.steps.runs.image_id_index import read_index_chunk, write_image_ids
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

EDGES = ("00" * 16, "ff" * 16, "00" * 15 + "01", "ab" + "00" * 15, "7f" * 16, "80" + "00" * 15)


def hexadecimal(count: int, seed: int = 7) -> list[str]:
    """Ids as digits, no two the same, the first ones at the edges of ranges."""
    random = np.random.default_rng(seed).bytes(16 * count)
    ids = [random[16 * index : 16 * (index + 1)].hex() for index in range(count)]
    return [*EDGES, *ids][:count]


def write(store: Store, ids: list[str], failed: int = 0) -> None:
    """Commit an index of these images; the last `failed` of them are not ok."""
    status = ["ok"] * (len(ids) - failed) + ["failed"] * failed
    manifest = pa.table(
        {"image_id": pa.array(ids, pa.string()), "status": pa.array(status, pa.string())}
    )
    with TemporaryDirectory() as folder, closing(Database(Path(folder))) as database:
        database.execute("CREATE TABLE images (image_id UUID, status VARCHAR)")
        database.insert("INSERT INTO images FROM manifest", "manifest", manifest)
        keys = write_image_ids(database, len(ids), store)
    head = read_head(store)
    create_commit(store, head, replace(head.commit, image_ids=keys))


def read_index(store: Store) -> list[str]:
    """Every id of a run's index, as digits, in order."""
    keys = read_head(store).commit.image_ids
    chunks = (read_index_chunk(store, key)["image_id"].to_pylist() for key in keys)
    return [image_id.hex() for chunk in chunks for image_id in chunk]
