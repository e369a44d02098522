"""What the input says twice: the same id with other content, which is refused, and the same image, made once.

Both are found by a narrow hash first and settled by the text itself, so that ten million rows fit in little memory.
An image_id is compared as a UUID, which takes a third of the memory that its digits take as text.
"""

from imagekiln.steps.database import Database

SAME_ID_SQL = """
    CREATE TABLE same_id AS
    WITH named AS (SELECT number, row, id, content FROM images WHERE rule IS NULL AND id IS NOT NULL),
    marks AS (SELECT hash(id) AS mark FROM named GROUP BY mark HAVING min(content) <> max(content)),
    suspects AS MATERIALIZED (SELECT * FROM named WHERE hash(id) IN (SELECT mark FROM marks)),
    first AS (SELECT id, arg_min(content, number) AS content FROM suspects GROUP BY id)
    SELECT number, row FROM suspects JOIN first USING (id) WHERE suspects.content <> first.content"""
VALID_IMAGES_SQL = "CREATE VIEW sound AS SELECT * FROM images ANTI JOIN same_id USING (number) WHERE rule IS NULL"
DUPLICATES_SQL = """
    CREATE TABLE duplicates AS
    WITH made AS (SELECT number, row, image_index, CAST(image_id AS UUID) AS name FROM sound),
    marks AS (SELECT hash(name) AS mark FROM made GROUP BY mark HAVING count(*) > 1),
    suspects AS MATERIALIZED (SELECT * FROM made WHERE hash(name) IN (SELECT mark FROM marks)),
    first AS (SELECT name, min(number) AS number, min(row) AS first_row FROM suspects GROUP BY name)
    SELECT suspects.number, row, image_index, name, first_row
    FROM suspects JOIN first USING (name) WHERE suspects.number > first.number"""
UNIQUE_IMAGES_SQL = "CREATE VIEW once AS SELECT * FROM sound ANTI JOIN duplicates USING (number)"


def create_duplicate_tables(database: Database) -> None:
    """From `images`, make the tables `same_id` and `duplicates`, and the view `once` of what neither holds."""
    for sql in (SAME_ID_SQL, VALID_IMAGES_SQL, DUPLICATES_SQL, UNIQUE_IMAGES_SQL):
        database.execute(sql)
