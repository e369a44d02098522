"""Selection of the newest images: no newer run has the image, or replaces it in the same row.

Rows and ids of all runs may not fit in memory, so DuckDB compares them in a file on a local disk.
Memory use is one bit per image.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.runs import RunSource, list_shards
from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.runs.tables import ID_COLUMN
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database

READERS = 4
CREATE_IMAGES = "CREATE TABLE images (run INT, number BIGINT, id UUID, value VARCHAR)"
# Images with a value that a newer run also has are dropped first, then those with the same id.
NEWEST_IMAGES = """
SELECT number FROM (
    FROM images QUALIFY value IS NULL OR run = max(run) OVER (PARTITION BY value)
) QUALIFY run = max(run) OVER (PARTITION BY id)"""


@dataclass(frozen=True, slots=True)
class NewestImages:
    """Images of some runs that no newer run replaces, by their values in `column`.

    `is_left` has a bit for each planned image, true if the image was ok at comparison and is not
    replaced. `shard_starts` maps run and shard to the first bit of the shard.
    """

    column: str
    is_left: pa.BooleanArray
    shard_starts: dict[tuple[int, int], int]

    def in_shard(self, run: int, shard: int, images: int) -> pa.BooleanArray:
        """Return the mask of the images of a shard that are left."""
        return self.is_left.slice(self.shard_starts[run, shard], images)


def find_newest_images(uri: str, runs: Sequence[RunSource], column: str) -> NewestImages | None:
    """Select each image, and each value of a column, from the newest run that has it.

    A failed image never hides one that is ok. Returns None for a single run, whose images are
    distinct. Raises Incomplete, BadInput, TryAgain.
    """
    if len(runs) < 2:
        return None
    shards = list_shards(runs)
    sizes = [runs[run].shard_images[shard] for run, shard in shards]
    starts = list(accumulate(sizes, initial=0))
    is_left = np.zeros(starts[-1], np.bool_)

    def read(index: int) -> pa.Table:
        run, shard = shards[index]
        return _read_values(runs[run], run, shard, starts[index], column)

    with (
        temporary_folder("imagekiln-newest-") as folder,
        closing(Database(Path(folder), file="images.duckdb")) as database,
    ):
        database.execute(CREATE_IMAGES)
        for rows in map_ordered(read, len(shards), READERS):
            database.insert("INSERT INTO images FROM shard_rows", "shard_rows", rows)
        [(images, compared)] = database.fetch_rows("SELECT count(*), count(value) FROM images")
        for batch in database.fetch_batches(NEWEST_IMAGES):
            is_left[batch["number"].to_numpy()] = True
    if images and not compared:
        raise BadInput(
            f"{uri}: no row has a value in {column}, by which to find the newest image. "
            "Set columns.id of the job to its ids, or choose another column."
        )
    return NewestImages(column, pa.array(is_left), dict(zip(shards, starts, strict=False)))


def _read_values(run: RunSource, number: int, shard: int, start: int, column: str) -> pa.Table:
    """Read the ids and values of a shard's ok images for comparison, with the images' numbers."""
    names = ["status", ID_COLUMN]
    has_column = column in run.columns.names
    if has_column and column != ID_COLUMN:
        names.append(column)
    store = open_store(run.uri)
    key = run.manifests[shard]
    images = run.shard_images[shard]
    manifest = read_manifest(store, key, images, names)
    columns = {
        "run": pa.repeat(number, images),
        "number": pa.array(range(start, start + images)),
        "id": manifest[ID_COLUMN],
        "value": manifest[column].cast(pa.string())
        if has_column
        else pa.nulls(images, pa.string()),
    }
    is_ok = pc.equal(manifest["status"], "ok")
    return pa.table(columns).filter(is_ok)
