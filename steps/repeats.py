"""What the input says twice: the same id with other content, which is refused, and the same image, made once.

Both are found by a narrow hash first and settled by the text itself, so that ten million rows fit in little memory.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from imagekiln.steps.database import Database

# `place` is where an image stands in the table of images.
SAME_ID = """
    CREATE TABLE same_id AS
    WITH named AS (SELECT rowid AS place, row, id, content FROM images WHERE rule IS NULL AND id IS NOT NULL),
    suspects AS (SELECT hash(id) AS mark FROM named GROUP BY mark HAVING min(content) <> max(content)),
    first AS (
        SELECT id, arg_min(content, row) AS content FROM named
        WHERE hash(id) IN (SELECT mark FROM suspects) GROUP BY id)
    SELECT place, row FROM named JOIN first USING (id) WHERE named.content <> first.content"""
SOUND = """
    CREATE VIEW sound AS
    SELECT rowid AS place, images.* FROM images ANTI JOIN same_id ON images.rowid = same_id.place
    WHERE rule IS NULL"""
DUPLICATES = """
    CREATE TABLE duplicates AS
    WITH suspects AS (SELECT hash(image_id) AS mark FROM sound GROUP BY mark HAVING count(*) > 1),
    ranked AS (
        SELECT place, row, image_index, image_id,
               first_value(row) OVER same AS first_row, row_number() OVER same AS rank
        FROM sound WHERE hash(image_id) IN (SELECT mark FROM suspects)
        WINDOW same AS (PARTITION BY image_id ORDER BY row, image_index))
    SELECT place, row, image_index, image_id, first_row FROM ranked WHERE rank > 1"""
PLANNED = "CREATE VIEW planned AS SELECT * FROM sound ANTI JOIN duplicates USING (place)"
DROPPED = "SELECT place FROM same_id UNION ALL SELECT place FROM duplicates ORDER BY place"


def mark(database: Database) -> None:
    """Work out the tables `same_id` and `duplicates`, and the view `planned` of the images that neither holds."""
    for sql in (SAME_ID, SOUND, DUPLICATES, PLANNED):
        database.run(sql)


def without(database: Database, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of images in any order, without `place` and without those marked. A join would lose their order."""
    dropped = np.append(database.table(DROPPED)["place"].to_numpy(), np.iinfo(np.int64).max)
    for batch in batches:
        places = batch.column("place").to_numpy()
        kept = dropped[np.searchsorted(dropped, places)] != places
        yield batch.filter(pa.array(kept)).drop_columns(["place"])
