"""Comparison of the images of an export with its source, by DuckDB in a file on a local disk.

Two images are equal if their ids and bytes are. Memory use is one byte per image.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.export.commits import ExportCommit, ExportFile, read_file_rows
from imagekiln.steps.runs.tables import ID_COLUMN
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

READERS = 8
Mask = npt.NDArray[np.bool_]

# `place` is the file number of an exported image, or the number of a source image. Digests are
# small, and joins with one condition spill to disk, so memory is constant for any number of images.
CREATE_TABLE = (
    "CREATE TABLE {} (place BIGINT, run VARCHAR, content UHUGEINT, id UHUGEINT, value UHUGEINT)"
)
INSERT_ROWS = """
INSERT INTO {} SELECT place, split_part(part, '/', 1), md5_number(id || sha256), md5_number(id),
    md5_number(value::VARCHAR)
FROM rows
"""
# Images in the source, and images of deleted runs if no newer run has their id or value.
FIND_STAYING = """
CREATE TABLE staying AS
SELECT place, content, true AS is_known FROM exported SEMI JOIN source USING (content)
UNION ALL
SELECT place, content, false FROM (FROM exported WHERE run NOT IN (FROM runs))
    ANTI JOIN source USING (id) ANTI JOIN source AS newer USING (value)
"""
COUNT_STAYING = """
SELECT place, count(*) FILTER (is_known), count(*) FROM staying GROUP BY place ORDER BY place
"""
FIND_NEW = """
SELECT source.place FROM source
    ANTI JOIN (SELECT content FROM staying SEMI JOIN kept USING (place)) USING (content)
"""


def compare_images(
    store: Store, commit: ExportCommit, run_ids: Sequence[str], source: Iterable[pa.Table]
) -> tuple[list[ExportFile], Mask, int]:
    """Compare the images of an export with the rows of a source with these runs.

    Returns the files to keep, a mask of the source images that are in none of them, and the number
    of images in the export both before and after. A file is kept if each of its images is in the
    source, or belongs to a deleted run and no newer run replaces it. Raises BadInput on damage,
    TryAgain.
    """
    with (
        temporary_folder("imagekiln-export-") as folder,
        closing(Database(Path(folder), file="images")) as database,
    ):
        run_table = pa.table({"run": [*run_ids]})
        database.insert("CREATE TABLE runs AS FROM ids", "ids", run_table)
        _insert_exported(database, store, commit)
        images = _insert_source(database, source, commit.settings.newest_by)
        database.execute(FIND_STAYING)
        places = []
        unchanged = 0
        for place, known, staying in database.fetch_rows(COUNT_STAYING):
            if staying == commit.files[place].images:
                places.append(place)
                unchanged += staying
            else:
                unchanged += known
        is_new = _find_new(database, places, images)
    kept = [commit.files[place] for place in places]
    return kept, is_new, unchanged


def _insert_exported(database: Database, store: Store, commit: ExportCommit) -> None:
    """Fill the table of exported images."""

    def read(index: int) -> pa.Table:
        return read_file_rows(store, commit.files[index])

    database.execute(CREATE_TABLE.format("exported"))
    newest_by = commit.settings.newest_by
    tables = map_ordered(read, len(commit.files), READERS)
    for number, rows in enumerate(tables):
        places = pa.repeat(number, rows.num_rows)
        _insert(database, "exported", rows, places, newest_by)


def _insert_source(database: Database, source: Iterable[pa.Table], newest_by: str) -> int:
    """Fill the table of source images, and return their number."""
    database.execute(CREATE_TABLE.format("source"))
    images = 0
    for rows in source:
        end = images + rows.num_rows
        places = pa.array(range(images, end))
        _insert(database, "source", rows, places, newest_by)
        images = end
    return images


def _insert(
    database: Database, table: str, rows: pa.Table, places: pa.Array, newest_by: str
) -> None:
    columns = {
        "id": rows[ID_COLUMN],
        "sha256": rows["sha256"],
        "value": rows[newest_by],
        "part": rows["part"],
        "place": places,
    }
    database.insert(INSERT_ROWS.format(table), "rows", pa.table(columns))


def _find_new(database: Database, kept: Sequence[int], images: int) -> Mask:
    """Return a mask of the source images that are in no kept file."""
    numbers = pa.array(kept, pa.int64())
    table = pa.table({"place": numbers})
    database.insert("CREATE TABLE kept AS FROM numbers", "numbers", table)
    is_new = np.zeros(images, np.bool_)
    for batch in database.fetch_batches(FIND_NEW):
        is_new[batch["place"].to_numpy()] = True
    return is_new
