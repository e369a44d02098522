"""The SQL by which a prompt row becomes its images: filled, judged, spread, seeded and named."""

from imagekiln.steps.job.job import Job
from imagekiln.steps.models.compatibility import shortcuts_label
from imagekiln.steps.plan.identity import image_id_sql, seed_sql
from imagekiln.steps.plan.rules import (
    MAX_IMAGES_PER_ROW,
    MAX_SEED,
    RejectionRule,
    first_violation_sql,
)
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.storage.scratch import Database

SAME_ID_SQL = """
    CREATE TABLE same_id AS
    WITH named AS (SELECT number, row, id, content FROM images WHERE rule IS NULL AND id IS NOT NULL),
    marks AS (SELECT hash(id) AS mark FROM named GROUP BY mark HAVING min(content) <> max(content)),
    suspects AS MATERIALIZED (SELECT * FROM named WHERE hash(id) IN (SELECT mark FROM marks)),
    first AS (SELECT id, arg_min(content, number) AS content FROM suspects GROUP BY id)
    SELECT number, row FROM suspects JOIN first USING (id) WHERE suspects.content <> first.content"""
VALID_IMAGES_SQL = (
    "CREATE VIEW sound AS SELECT * FROM images ANTI JOIN same_id USING (number) WHERE rule IS NULL"
)
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


# What all images of one batch must have in common. `pictures` names the columns of pictures that are not null.
SHAPE_COLUMNS = ("width", "height", "steps", "guidance", "sampler", "loras", "strength", "input_images")
INPUT_IMAGES_SQL = "nullif(concat_ws(',', {}), '')".format(
    ", ".join(f"CASE WHEN {name} IS NOT NULL THEN '{name}' END" for name in INPUT_IMAGE_COLUMNS)
)


def images_sql(
    job: Job,
    rules: tuple[RejectionRule, ...],
    model_key: str,
    size: tuple[int, int],
    carried: tuple[str, ...],
) -> str:
    """The images of the rows of `input`, in their order, and each refused row once, with the `rule` it breaks.

    `number` counts images over the whole input, with room for the most that a row may have.
    """
    given, kept = job.defaults, "".join(f", {name}" for name in carried)
    shape, pictures, taken = (
        ", ".join(SHAPE_COLUMNS),
        ", ".join(INPUT_IMAGE_COLUMNS),
        shortcuts_label(job.speed),
    )
    named_shortcuts = "NULL" if taken is None else quote_literal(taken)
    # In ids LoRAs are their files, whatever they are called; in the plan they are their names.
    named = ", ".join("lora_names AS loras" if name == "loras" else name for name in SHAPE_COLUMNS)
    return f"""
        WITH filled AS (
            SELECT row, wrong, truncated, id, prompt,
                   CASE WHEN seed > {MAX_SEED} THEN {MAX_SEED + 1} ELSE seed END AS row_seed,
                   coalesce(negative_prompt, {quote_literal(given.negative_prompt)}) AS negative_prompt,
                   coalesce(width, {size[0]}) AS width, coalesce(height, {size[1]}) AS height,
                   coalesce(steps, {given.steps}) AS steps,
                   coalesce(guidance, CAST({given.guidance} AS DOUBLE)) + 0.0::DOUBLE AS guidance, -- never -0.0
                   coalesce(sampler, {quote_literal(given.sampler)}) AS sampler,
                   lora_key AS loras, lora_names, lora_fault, {INPUT_IMAGES_SQL} AS input_images, {pictures},
                   coalesce(strength, CASE WHEN source_image IS NOT NULL THEN CAST({given.strength} AS DOUBLE) END)
                       + 0.0::DOUBLE AS strength,
                   coalesce(images, {given.images_per_prompt}) AS images {kept}
            FROM input),
        judged AS (SELECT *, {first_violation_sql(rules)} AS rule FROM filled),
        spread AS (
            SELECT *, unnest(range(CASE WHEN rule IS NULL THEN images ELSE 1 END)) AS image_index,
                   CASE WHEN id IS NOT NULL
                        THEN hash(prompt, negative_prompt, row_seed, {shape}, {pictures}, images) END AS content
            FROM judged),
        seeded AS (SELECT *, {seed_sql(given.seed)} AS seed FROM spread)
        SELECT {image_id_sql(model_key)} AS image_id, id, image_index, row, prompt, negative_prompt, seed,
               {named}, {pictures}, truncated, {named_shortcuts}::VARCHAR AS shortcuts {kept},
               row * {MAX_IMAGES_PER_ROW} + image_index AS number, rule, content
        FROM seeded"""


def quote_literal(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
