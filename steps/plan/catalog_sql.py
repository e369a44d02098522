"""The SQL of a catalog, in the order in which it runs; docs/architecture.md draws it.

`number` is a row's number times MAX_IMAGES_PER_ROW, plus the index of the image. `image_texts` has
the images with their texts, and `images` has hashes in place of texts, which take less memory.
Hashes find suspects, whose texts are then compared.
"""

from imagekiln.steps.job.columns import MAX_IMAGES_PER_ROW
from imagekiln.steps.plan.image_sql import SHAPE_COLUMNS

NARROW_COLUMNS = (
    "number",
    "id_hash",
    "image_hash",
    "row_hash",
    "rule",
    "truncated",
    *SHAPE_COLUMNS,
)
SHAPE = ", ".join(SHAPE_COLUMNS)
NEAR_SEED = "is so near that of the same prompt that they share some candidates"

# 1. Rows with the id of an earlier row and other content.
ID_HASHES = f"""
    SELECT id_hash AS hash FROM images
    WHERE rule IS NULL AND id_hash IS NOT NULL AND number % {MAX_IMAGES_PER_ROW} = 0"""
SAME_ID_SUSPECTS = """
    CREATE TABLE same_id_suspects AS
    WITH named AS (
        SELECT number, id_hash, row_hash FROM images
        WHERE rule IS NULL AND id_hash IN (FROM repeated_ids)),
    conflicting AS (
        SELECT id_hash FROM named GROUP BY id_hash HAVING min(row_hash) <> max(row_hash))
    SELECT number, row_hash FROM named WHERE id_hash IN (FROM conflicting)"""
SAME_ID = f"""
    CREATE TABLE same_id AS
    WITH suspects AS MATERIALIZED (
        SELECT number, id, row_hash FROM same_id_suspects JOIN suspect_texts USING (number)),
    first AS (
        SELECT id, arg_min(row_hash, number) AS row_hash FROM suspects GROUP BY id)
    SELECT number, number // {MAX_IMAGES_PER_ROW} AS row
    FROM suspects JOIN first USING (id)
    WHERE suspects.row_hash <> first.row_hash"""
VALID_IMAGES = """
    CREATE VIEW valid_images AS
    SELECT * FROM images ANTI JOIN same_id USING (number) WHERE rule IS NULL"""

# 2. Images with the image_id of an earlier image.
IMAGE_HASHES = "SELECT image_hash AS hash FROM valid_images"
DUPLICATE_SUSPECTS = """
    CREATE TABLE duplicate_suspects AS
    SELECT number FROM valid_images WHERE image_hash IN (FROM repeated_images)"""
DUPLICATES = f"""
    CREATE TABLE duplicates AS
    WITH suspects AS MATERIALIZED (
        SELECT number, CAST(image_id AS UUID) AS name
        FROM duplicate_suspects JOIN suspect_texts USING (number)),
    first AS (SELECT name, min(number) AS first_number FROM suspects GROUP BY name)
    SELECT number, number // {MAX_IMAGES_PER_ROW} AS row,
           number % {MAX_IMAGES_PER_ROW} AS image_index,
           name, first_number // {MAX_IMAGES_PER_ROW} AS first_row
    FROM suspects JOIN first USING (name) WHERE number > first_number"""
UNIQUE_IMAGES = """
    CREATE VIEW unique_images AS SELECT * FROM valid_images ANTI JOIN duplicates USING (number)"""

# 3. Images that earlier runs have.
EXISTING = "CREATE TABLE existing (number BIGINT)"
PLANNED_IMAGES = """
    CREATE VIEW planned_images AS
    SELECT * FROM unique_images ANTI JOIN existing USING (number)"""


def candidate_group(candidates: int) -> str:
    """The number of the first candidate of each image's group, by the image's own `number`."""
    return f"number - number % {MAX_IMAGES_PER_ROW} % {candidates}"


def whole_groups(candidates: int) -> str:
    """Omit all candidates of which one exists."""
    group = candidate_group(candidates)
    return f"""
        INSERT INTO existing
        SELECT number FROM planned_images WHERE {group} IN (SELECT {group} FROM existing)"""


def split_groups(candidates: int) -> str:
    """The rows of which others make some candidates, as causes of a rejection."""
    return f"""
        WITH split AS (
            SELECT min(number) // {MAX_IMAGES_PER_ROW} AS row FROM planned_images
            GROUP BY {candidate_group(candidates)} HAVING count(*) <> {candidates})
        SELECT 'seed' AS "column", '{NEAR_SEED}' AS reason, count(DISTINCT row) AS rows,
               min(row) AS row
        FROM split HAVING count(*) > 0"""


# 4. Planned images by shape, and what the plan lists.
SHAPES = f"""
    CREATE TABLE shapes AS
    SELECT {SHAPE}, count(*) AS images,
           count(DISTINCT number // {MAX_IMAGES_PER_ROW}) FILTER (truncated) AS truncated,
           min(number) AS first_number
    FROM planned_images GROUP BY {SHAPE}"""
GROUPS = "SELECT * EXCLUDE (first_number) FROM shapes ORDER BY first_number"
REJECTED_ROW_COUNT = """
    SELECT (SELECT count(*) FROM images WHERE rule IS NOT NULL)
         + (SELECT count(DISTINCT row) FROM same_id)"""
OMITTED_NUMBERS = """
    SELECT number FROM images WHERE rule IS NOT NULL UNION ALL SELECT number FROM same_id
    UNION ALL SELECT number FROM duplicates UNION ALL SELECT number FROM existing ORDER BY number"""
# Sorted as numbers: as texts, many of them would not fit in memory.
DUPLICATE_ROWS = """
    SELECT row AS input_row, image_index,
           replace(CAST(name AS VARCHAR), '-', '') AS image_id, first_row
    FROM (SELECT * FROM duplicates ORDER BY number)"""
