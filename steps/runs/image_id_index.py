"""The image index of a run: the ids that no later run is to make, in chunks beside the manifest.

These are the images that are ok, and those that were taken down. Each chunk has a few megabytes,
covers an equal range of ids and is sorted. The number of chunks follows from the plan. DuckDB sorts
the ids in a file on this disk, so memory stays flat for any number of images.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.commits import digest_of
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.keys import image_ids_key
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

IDS_PER_CHUNK = 2**19  # 8 MiB
ID_COLUMN = "image_id"
IMAGE_INDEX_SCHEMA = pa.schema([pa.field(ID_COLUMN, pa.binary(16))])
INSERT_IDS = """
    INSERT INTO ids
    SELECT (CAST('0x' || image_id[:8] AS BIGINT) * {chunks}) >> 32, CAST(image_id AS UUID)
    FROM images"""
SELECT_CHUNK = """
    SELECT unhex(replace(CAST(id AS VARCHAR), '-', '')) AS image_id
    FROM sorted WHERE chunk = {chunk} ORDER BY id"""


@dataclass(frozen=True, slots=True)
class ImageIds:
    """The ids to list, in a table on this disk, for so many chunks."""

    database: Database
    chunks: int

    def add(self, manifest: pa.Table) -> None:
        """Add the images of one shard that no later run is to make. Raises TryAgain."""
        is_listed = pc.is_in(manifest["status"], pa.array(["ok", FORGOTTEN_STATUS]))
        listed = manifest.filter(is_listed)
        images = listed.select([ID_COLUMN])
        sql = INSERT_IDS.format(chunks=self.chunks)
        self.database.insert(sql, "images", images)

    def write(self, store: Store) -> tuple[str, ...]:
        """Write the index of the run in `store`, and return the keys of its chunks."""
        self.database.execute("CREATE TABLE sorted AS FROM ids ORDER BY chunk")
        keys = []
        for number in range(self.chunks):
            sql = SELECT_CHUNK.format(chunk=number)
            rows = self.database.fetch_table(sql).cast(IMAGE_INDEX_SCHEMA)
            content = to_parquet(rows.combine_chunks())
            key = image_ids_key(number, digest_of(content))
            store.create(key, content)
            keys.append(key)
        return tuple(keys)


@contextmanager
def collect_image_ids(planned: int) -> Iterator[ImageIds]:
    """The ids of the images of a run with so many planned ones; none at first."""
    with (
        temporary_folder("imagekiln-ids-") as folder,
        closing(Database(Path(folder), file="ids.duckdb")) as database,
    ):
        database.execute("CREATE TABLE ids (chunk INTEGER, id UUID)")
        yield ImageIds(database, max(1, -(-planned // IDS_PER_CHUNK)))


def read_index_chunk(store: Store, key: str) -> pa.Table:
    """One chunk of a run's index: ids of 16 bytes. Raises BadInput if it is missing or damaged."""
    where = store.uri_of(key)
    try:
        table = read_table(store, key)
    except Missing as error:
        raise BadInput(
            f"{where}: is missing, so it is unknown which images the run holds. "
            "Aggregate the run again."
        ) from error
    if table.schema != IMAGE_INDEX_SCHEMA:
        raise BadInput(f"{where}: is not a chunk of an image index. Aggregate the run again.")
    return table
