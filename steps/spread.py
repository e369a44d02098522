"""The SQL by which a prompt row becomes its images: filled, judged, spread, seeded and named."""

from imagekiln.steps import shortcuts
from imagekiln.steps.cells import INPUT_IMAGE_COLUMNS
from imagekiln.steps.identity import image_id_sql, seed_sql
from imagekiln.steps.job import Job
from imagekiln.steps.rules import MAX_IMAGES_PER_ROW, MAX_SEED, RejectionRule, first_violation_sql

# What all images of one batch must have in common. `pictures` names the columns of pictures that are not null.
SHAPE_COLUMNS = ("width", "height", "steps", "guidance", "sampler", "loras", "strength", "pictures")
INPUT_IMAGES_SQL = "nullif(concat_ws(',', {}), '')".format(
    ", ".join(f"CASE WHEN {name} IS NOT NULL THEN '{name}' END" for name in INPUT_IMAGE_COLUMNS)
)


def images_sql(
    job: Job, rules: tuple[RejectionRule, ...], model_key: str, size: tuple[int, int], carried: tuple[str, ...]
) -> str:
    """The images of the rows of `input`, in their order, and each refused row once, with the `rule` it breaks.

    `number` counts images over the whole input, with room for the most that a row may have.
    """
    given, kept = job.defaults, "".join(f", {name}" for name in carried)
    shape, pictures, taken = (
        ", ".join(SHAPE_COLUMNS),
        ", ".join(INPUT_IMAGE_COLUMNS),
        shortcuts.shortcuts_label(job.speed),
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
                   lora_key AS loras, lora_names, lora_fault, {INPUT_IMAGES_SQL} AS pictures, {pictures},
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
