"""What an export has, compared with what its source has now, by DuckDB in a file on this disk.

An image is the same if its id and its bytes are. Memory keeps a byte for each image.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.export.commits import ExportCommit, ExportFile, read_file_rows
from imagekiln.steps.runs.image_id_index import ID_COLUMN
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

READERS = 8
Mask = npt.NDArray[np.bool_]

# `place` is the file of an exported image, and the number of one of the source.
CREATE_TABLE = (
    "CREATE TABLE {} (place BIGINT, id VARCHAR, sha256 VARCHAR, value VARCHAR, run VARCHAR)"
)
INSERT_ROWS = "INSERT INTO {} SELECT place, id, sha256, value, split_part(part, '/', 1) FROM rows"
COMPARE = """
CREATE TABLE compared AS SELECT place, id, sha256,
    EXISTS (FROM source WHERE source.id = exported.id AND source.sha256 = exported.sha256) AS known,
    run NOT IN (SELECT run FROM runs)
        AND NOT EXISTS (FROM source WHERE source.id = exported.id)
        AND NOT EXISTS (FROM source WHERE source.value = exported.value) AS gone
FROM exported
"""
FIND_KEPT = (
    "CREATE TABLE kept AS SELECT place FROM compared GROUP BY place HAVING bool_and(known OR gone)"
)
COUNT_UNCHANGED = "SELECT count(*) FROM compared WHERE known OR place IN (FROM kept)"
FIND_NEW = """
SELECT place FROM source WHERE NOT EXISTS (
    FROM compared WHERE compared.id = source.id AND compared.sha256 = source.sha256
        AND compared.place IN (FROM kept)
)
"""


def compare_images(
    store: Store, commit: ExportCommit, run_ids: Sequence[str], source: Iterable[pa.Table]
) -> tuple[list[ExportFile], Mask, int]:
    """Compare the images of an export with the rows of a source with these runs.

    Returns the files that stay, for each image of the source whether none of those has it, and the
    number of images that the export has before and after. A file stays if each of its images does:
    if the source has it, or if its run is gone and no newer run has another one in its place.
    Raises BadInput on damage, TryAgain.
    """
    with (
        temporary_folder("imagekiln-export-") as folder,
        closing(Database(Path(folder), file="images")) as database,
    ):
        run_table = pa.table({"run": [*run_ids]})
        database.insert("CREATE TABLE runs AS FROM ids", "ids", run_table)
        _insert_exported(database, store, commit)
        images = _insert_source(database, source, commit.settings.newest_by)
        database.execute(COMPARE)
        database.execute(FIND_KEPT)
        kept = []
        for (place,) in database.fetch_rows("FROM kept ORDER BY 1"):
            kept.append(commit.files[place])
        ((unchanged,),) = database.fetch_rows(COUNT_UNCHANGED)
        is_new = _find_new(database, images)
    return kept, is_new, unchanged


def _insert_exported(database: Database, store: Store, commit: ExportCommit) -> None:
    """Fill the table of the images that the export has."""

    def read(index: int) -> pa.Table:
        return read_file_rows(store, commit.files[index])

    database.execute(CREATE_TABLE.format("exported"))
    tables = map_ordered(read, len(commit.files), READERS)
    for number, rows in enumerate(tables):
        places = [number] * rows.num_rows
        _insert(database, "exported", rows, places, commit.settings.newest_by)


def _insert_source(database: Database, source: Iterable[pa.Table], newest_by: str) -> int:
    """Fill the table of the images that the source has, and return their number."""
    database.execute(CREATE_TABLE.format("source"))
    images = 0
    for rows in source:
        end = images + rows.num_rows
        _insert(database, "source", rows, range(images, end), newest_by)
        images = end
    return images


def _insert(
    database: Database, table: str, rows: pa.Table, places: Iterable[int], newest_by: str
) -> None:
    keys = rows.select([ID_COLUMN, "sha256", newest_by, "part"])
    keys = keys.rename_columns(["id", "sha256", "value", "part"])
    keys = keys.append_column("place", pa.array(places, pa.int64()))
    database.insert(INSERT_ROWS.format(table), "rows", keys)


def _find_new(database: Database, images: int) -> Mask:
    """For each image of the source, whether no file that stays has it."""
    is_new = np.zeros(images, np.bool_)
    for batch in database.fetch_batches(FIND_NEW):
        places = batch["place"].to_numpy()
        is_new[places] = True
    return is_new
