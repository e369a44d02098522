"""The image index of a run: the ids that no later run is to make, in chunks beside the manifest.

These are the images that are ok, and those that were taken down. Each chunk has a few megabytes,
covers an equal range of ids and is sorted. The number of chunks follows from the plan. DuckDB sorts
the ids in a file on this disk, so memory stays flat for any number of images.
"""

import pyarrow as pa

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.commits import digest_of
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.keys import image_ids_key
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

IDS_PER_CHUNK = 2**19  # 8 MiB
ID_COLUMN = "image_id"
IMAGE_INDEX_SCHEMA = pa.schema([pa.field(ID_COLUMN, pa.binary(16))])
SORT_IDS = """
    CREATE TABLE sorted AS
    SELECT (CAST('0x' || left(CAST(image_id AS VARCHAR), 8) AS BIGINT) * {chunks}) >> 32 AS chunk,
        image_id AS id
    FROM images WHERE status IN ('ok', '{forgotten}') ORDER BY chunk"""
SELECT_CHUNK = """
    SELECT unhex(replace(CAST(id AS VARCHAR), '-', '')) AS image_id
    FROM sorted WHERE chunk = {chunk} ORDER BY id"""


def write_image_ids(database: Database, planned: int, store: Store) -> tuple[str, ...]:
    """Write the index of a run, and return the keys of its chunks. Raises TryAgain.

    The images are in the table `images`, with their `image_id` as UUID and their `status`.
    """
    chunks = max(1, -(-planned // IDS_PER_CHUNK))
    database.execute(SORT_IDS.format(chunks=chunks, forgotten=FORGOTTEN_STATUS))
    keys = []
    for number in range(chunks):
        sql = SELECT_CHUNK.format(chunk=number)
        rows = database.fetch_table(sql).cast(IMAGE_INDEX_SCHEMA)
        content = to_parquet(rows.combine_chunks())
        key = image_ids_key(number, digest_of(content))
        store.create(key, content)
        keys.append(key)
    database.execute("DROP TABLE sorted")
    return tuple(keys)


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
