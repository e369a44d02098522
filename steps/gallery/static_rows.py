"""The rows of a static gallery in blocks: as text, each with where its thumbnail is."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps.gallery.images import format_row
from imagekiln.steps.gallery.runs import GalleryRun
from imagekiln.steps.gallery.static_files import ROWS_FOLDER, THUMBNAILS_FOLDER, put_json
from imagekiln.steps.gallery.static_thumbnails import put_thumbnails
from imagekiln.steps.runs.sidecar import to_rows
from imagekiln.steps.runtime.concurrency import map_ordered, thread_pool
from imagekiln.steps.storage.store import Store

BLOCK_IMAGES = 128
WRITERS = 4  # blocks at a time, each with the files of a few images in memory
READERS = 8


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that follow each other: the keys of their files, and what is wrong with images."""

    images: int
    rows_name: str
    keys: tuple[str, ...]
    problems: tuple[str, ...]


def put_blocks(run: GalleryRun, target: Store, manifest: pa.Table) -> Iterator[Block]:
    """Write the rows of a manifest and their thumbnails, but for those that are there.

    Raises TryAgain where storage fails.
    """
    count = -(-manifest.num_rows // BLOCK_IMAGES)
    with thread_pool(READERS) as readers:

        def put(number: int) -> Block:
            first = number * BLOCK_IMAGES
            rows = manifest.slice(first, BLOCK_IMAGES)
            return _put_block(run, target, rows, readers)

        yield from map_ordered(put, count, WRITERS)


def _put_block(
    run: GalleryRun, target: Store, rows: pa.Table, readers: ThreadPoolExecutor
) -> Block:
    thumbnails = put_thumbnails(run.run.store, target, rows, readers)
    block = {
        "rows": [format_row(row) for row in to_rows(rows)],
        "thumbnails": thumbnails and [thumbnails.name, thumbnails.offsets],
    }
    name = put_json(target, ROWS_FOLDER, block)
    rows_key = f"{ROWS_FOLDER}/{name}"
    if thumbnails is None:
        return Block(rows.num_rows, name, (rows_key,), ())
    thumbnails_key = f"{THUMBNAILS_FOLDER}/{thumbnails.name}"
    return Block(rows.num_rows, name, (rows_key, thumbnails_key), thumbnails.problems)
