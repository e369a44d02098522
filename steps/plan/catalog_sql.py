"""SQL statements of a catalog, in execution order. docs/architecture.md has a diagram.

`number` is the row number times MAX_IMAGES_PER_ROW, plus the image index. The table `images` holds
no strings: it has 128-bit numbers in place of image ids and row ids.
"""

from imagekiln.steps.job.columns import MAX_IMAGES_PER_ROW
from imagekiln.steps.plan.image_sql import SHAPE_COLUMNS

NARROW_COLUMNS = ("number", "image_id", "id", "row_hash", "rule", "truncated", *SHAPE_COLUMNS)
SHAPE = ", ".join(SHAPE_COLUMNS)
NEAR_SEED = "is so near that of the same prompt that they share some candidates"
IMAGES = """
    CREATE TABLE images AS
    SELECT * EXCLUDE (id) REPLACE (CAST(image_id AS UUID) AS image_id), md5_number(id) AS id_key
    FROM narrow_images"""

# 1. Rows that repeat the id of an earlier row with different content.
ID_HASHES = f"""
    SELECT hash(id_key) AS hash FROM images
    WHERE rule IS NULL AND id_key IS NOT NULL AND number % {MAX_IMAGES_PER_ROW} = 0"""
SAME_ID = f"""
    CREATE TABLE same_id AS
    WITH named AS (
        SELECT number, id_key, row_hash FROM images
        WHERE rule IS NULL AND hash(id_key) IN (FROM repeated_ids)),
    first AS (SELECT id_key, arg_min(row_hash, number) AS row_hash FROM named GROUP BY id_key)
    SELECT number, number // {MAX_IMAGES_PER_ROW} AS row
    FROM named JOIN first USING (id_key) WHERE named.row_hash <> first.row_hash"""


def rejected(same_id_rule: int) -> str:
    """Build the statement that lists rejected rows with the index of their rule."""
    return f"""
        CREATE TABLE rejected AS
        SELECT number // {MAX_IMAGES_PER_ROW} AS row, rule FROM images WHERE rule IS NOT NULL
        UNION ALL SELECT DISTINCT row, {same_id_rule} FROM same_id
        ORDER BY row"""


VALID_IMAGES = """
    CREATE VIEW valid_images AS
    SELECT * FROM images ANTI JOIN same_id USING (number) WHERE rule IS NULL"""

# 2. Images that repeat the image_id of an earlier image.
IMAGE_HASHES = "SELECT hash(image_id) AS hash FROM valid_images"
DUPLICATES = f"""
    CREATE TABLE duplicates AS
    WITH repeated AS (
        SELECT number, image_id FROM valid_images
        WHERE hash(image_id) IN (FROM repeated_images)),
    first AS (SELECT image_id, min(number) AS first_number FROM repeated GROUP BY image_id)
    SELECT number, number // {MAX_IMAGES_PER_ROW} AS row,
           number % {MAX_IMAGES_PER_ROW} AS image_index,
           image_id, first_number // {MAX_IMAGES_PER_ROW} AS first_row
    FROM repeated JOIN first USING (image_id) WHERE number > first_number"""
UNIQUE_IMAGES = """
    CREATE VIEW unique_images AS SELECT * FROM valid_images ANTI JOIN duplicates USING (number)"""

# 3. Images that earlier runs already hold.
HELD = "CREATE TABLE held (id UUID)"
INSERT_HELD = "INSERT INTO held SELECT CAST(image_id AS UUID) FROM manifest"
EXISTING = """
    CREATE TABLE existing AS
    SELECT number FROM unique_images WHERE image_id IN (FROM held)"""
PLANNED_IMAGES = """
    CREATE VIEW planned_images AS
    SELECT * FROM unique_images ANTI JOIN existing USING (number)"""


def candidate_group(candidates: int) -> str:
    """Build an expression for the `number` of the first candidate in an image's group."""
    return f"number - number % {MAX_IMAGES_PER_ROW} % {candidates}"


def whole_groups(candidates: int) -> str:
    """Build the statement that omits every candidate of a group if one of them exists."""
    group = candidate_group(candidates)
    return f"""
        INSERT INTO existing
        SELECT number FROM planned_images WHERE {group} IN (SELECT {group} FROM existing)"""


def split_groups(candidates: int) -> str:
    """Build a query for rows that share some candidates with another row, as rejection causes."""
    return f"""
        WITH split AS (
            SELECT min(number) // {MAX_IMAGES_PER_ROW} AS row FROM planned_images
            GROUP BY {candidate_group(candidates)} HAVING count(*) <> {candidates})
        SELECT 'seed' AS "column", '{NEAR_SEED}' AS reason, count(DISTINCT row) AS rows,
               min(row) AS row
        FROM split HAVING count(*) > 0"""


# 4. Planned images by shape, and the lists of the plan.
SHAPES = f"""
    CREATE TABLE shapes AS
    SELECT {SHAPE}, count(*) AS images,
           count(DISTINCT number // {MAX_IMAGES_PER_ROW}) FILTER (truncated) AS truncated,
           row_number() OVER (ORDER BY min(number)) - 1 AS place
    FROM planned_images GROUP BY {SHAPE}"""
GROUPS = "SELECT * EXCLUDE (place) FROM shapes ORDER BY place"
IS_SHAPE = " AND ".join(f"image.{name} IS NOT DISTINCT FROM shape.{name}" for name in SHAPE_COLUMNS)
PLANNED = f"""
    CREATE TABLE planned AS
    SELECT number, place FROM planned_images image JOIN shapes shape ON {IS_SHAPE}
    ORDER BY number"""
# Sorted by number: many ids, sorted as strings, would not fit in memory.
DUPLICATE_ROWS = """
    SELECT row AS input_row, image_index,
           replace(CAST(image_id AS VARCHAR), '-', '') AS image_id, first_row
    FROM (SELECT * FROM duplicates ORDER BY number)"""
