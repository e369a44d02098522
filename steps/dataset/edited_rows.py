"""Rows whose prompts were edited: ids that have images of several texts, in one run or another.

Ids of all runs do not fit in memory: they are distributed over files on this disk.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from imagekiln.steps.dataset.newest_images import IMAGES_PER_BUCKET, READERS, hash_texts
from imagekiln.steps.dataset.runs import RunSource
from imagekiln.steps.runs.image_id_index import NUMBERED_ID_DTYPE, IdBuckets, RecordArray
from imagekiln.steps.runs.manifest import read_manifest_columns
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder

COLUMNS = ("status", "id", "prompt")


def count_edited_ids(runs: Sequence[RunSource]) -> int:
    """The ids of rows of which these runs have images of more than one prompt.

    Raises BadInput where a manifest is damaged, TryAgain.
    """
    shards = [(run, shard) for run in runs for shard in range(len(run.shard_images))]
    planned = sum(sum(run.shard_images) for run in runs)
    with temporary_folder("imagekiln-edited-") as folder:
        buckets = IdBuckets(Path(folder), max(1, planned // IMAGES_PER_BUCKET), NUMBERED_ID_DTYPE)
        for records in map_ordered(lambda index: _read_texts(*shards[index]), len(shards), READERS):
            buckets.add(records)
        return sum(_count_edited(buckets.read(number)) for number in range(buckets.count))


def _read_texts(run: RunSource, shard: int) -> RecordArray:
    """The ids of a shard's images that are ok, each numbered by a hash of its prompt."""
    images = run.shard_images[shard]
    manifest = read_manifest_columns(open_store(run.uri), shard, images, COLUMNS)
    is_stored = pc.equal(manifest["status"], "ok")
    rows = manifest.filter(pc.and_(is_stored, pc.is_valid(manifest["id"])))

    records = np.empty(rows.num_rows, NUMBERED_ID_DTYPE)
    records["id"] = hash_texts(rows["id"])
    digests = hash_texts(rows["prompt"])
    records["number"] = digests.view(np.int64)[::2]
    return records


def _count_edited(records: RecordArray) -> int:
    texts = np.unique(records)
    _, counts = np.unique(texts["id"], return_counts=True)
    return int(np.count_nonzero(counts > 1))
