"""A DuckDB table of a run's images while they are counted, numbered from 0 in plan order.

The table is in a file on the local disk, so memory use does not grow with the number of images.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database

# Columns of the manifest, with their SQL types.
COLUMNS = {
    "image_id": "UUID",
    "input_row": "BIGINT",
    "image_index": "BIGINT",
    "prompt": "BIGINT",  # its length
    "width": "BIGINT",
    "height": "BIGINT",
    "steps": "BIGINT",
    "guidance": "DOUBLE",
    "status": "VARCHAR",
    "error": "VARCHAR",
    "byte_size": "BIGINT",
    "marks": "VARCHAR[]",
    "phash": "BIGINT",
}
CREATE_TABLES = """
    CREATE TABLE images ({fields});
    CREATE TABLE near_duplicates (number BIGINT, original UUID);
    CREATE VIEW marks AS
        SELECT rowid AS number, unnest(marks) AS gate FROM images
        UNION ALL SELECT number, 'near_duplicate' FROM near_duplicates"""
Row = dict[str, Any]


class ImageTable:
    """The tables `images` and `near_duplicates`. A `rowid` or `number` is an image's number.

    `prompt` holds the length of the prompt. `values` maps scores and the rank column to their SQL
    names, since users choose the names of scores.
    """

    def __init__(self, database: Database, job: Job) -> None:
        """Create empty tables."""
        self.database = database
        names = list(job.scores)
        if job.keep is not None:
            names.append(RANK_COLUMN)
        self.values = {name: f"value{place}" for place, name in enumerate(names)}
        floats = dict.fromkeys(self.values.values(), "FLOAT")
        types = COLUMNS | floats
        fields = [f"{name} {kind}" for name, kind in types.items()]
        database.execute(CREATE_TABLES.format(fields=", ".join(fields)))

    def add(self, manifest: pa.Table) -> None:
        """Add the images of the next shard."""
        rows = manifest.select([*COLUMNS, *self.values])
        rows = rows.rename_columns([*COLUMNS, *self.values.values()])
        sql = "INSERT INTO images SELECT * REPLACE (length(prompt) AS prompt) FROM manifest_rows"
        self.database.insert(sql, "manifest_rows", rows)

    def fetch(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Fetch the rows of a query."""
        return self.database.fetch_rows(sql, parameters)

    def fetch_numbers(self, sql: str, *parameters: object) -> list[int]:
        """Fetch the image numbers that a query selects, in plan order."""
        return sorted(number for (number,) in self.fetch(sql, *parameters))


def read_rows(
    plan: Plan, numbers: Iterable[int], read_manifest: Callable[[int], pa.Table]
) -> dict[int, Row]:
    """Read the manifest rows of images, by number."""
    sizes = [shard.images for shard in plan.shards]
    starts = list(accumulate(sizes, initial=0))
    by_shard: defaultdict[int, list[int]] = defaultdict(list)
    for number in sorted(set(numbers)):
        shard = bisect(starts, number) - 1
        by_shard[shard].append(number)
    shards = list(by_shard)

    def read(place: int) -> dict[int, Row]:
        shard = shards[place]
        of_shard = by_shard[shard]
        places = [number - starts[shard] for number in of_shard]
        manifest = read_manifest(shard)
        rows = to_rows(manifest.take(places))
        return dict(zip(of_shard, rows, strict=True))

    rows: dict[int, Row] = {}
    for of_shard in map_ordered(read, len(shards)):
        rows |= of_shard
    return rows


@contextmanager
def open_image_table(job: Job) -> Iterator[ImageTable]:
    """Open a temporary image table."""
    with (
        temporary_folder("imagekiln-images-") as folder,
        closing(Database(Path(folder), file="images.duckdb")) as database,
    ):
        yield ImageTable(database, job)
