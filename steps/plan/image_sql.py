"""SQL that expands prompt rows to images, each with its seed and image_id.

An image_id is a hash of all inputs that determine the image's pixels. Strings are prefixed with
their length in bytes, so that different rows never concatenate to the same string.
"""

import hashlib
import json
from collections.abc import Mapping
from math import lcm

from imagekiln.steps.job.columns import (
    INPUT_IMAGE_COLUMNS,
    MAX_IMAGES_PER_ROW,
    OPTIONAL_IDENTITY_COLUMNS,
    PROMPT_COLUMNS,
    SEED,
    ColumnKind,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.rows import RowDefaults
from imagekiln.steps.models.facts import (
    ModelFacts,
    default_guidance,
    default_image_size,
    default_steps,
)
from imagekiln.steps.models.families import fills_masks
from imagekiln.steps.models.own_settings import NO_GUIDANCE
from imagekiln.steps.models.resolve import shortcuts_label

# The width and height of the first reference image of a row, in pixels.
REFERENCE_SIZE_COLUMNS = ("reference_width", "reference_height")
# As the edit pipelines of diffusers round sizes, in pixels: one that takes none rounds up.
REFERENCE_MULTIPLE = 32
OWN_SIZE_MULTIPLE = 16
INPUT_IMAGE_SET_COLUMN = "input_images"  # comma-separated names of the row's input images
SHAPE_COLUMNS = (
    *(column.name for column in PROMPT_COLUMNS if column.in_shape),
    INPUT_IMAGE_SET_COLUMN,
)
SQL_TYPES: Mapping[ColumnKind, str] = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "image": "VARCHAR",
    "images": "VARCHAR",
}
ID_DIGITS = 32  # 128 bits: no collision is expected below 10^19 images
NO_SEED_SQL = "'-'"
SEED_DIGITS = 13  # 52 bits, which every JSON reader represents exactly


def model_key(digest: str, dtype: str, *extras: str) -> str:
    """Hash the model's files, its precision and the `extras` that change every image.

    Each of `extras` begins with its kind, such as `fp8`, to keep them distinct.
    """
    content = json.dumps(["imagekiln-1", digest, dtype, *extras])
    hashed = hashlib.sha256(content.encode())
    return hashed.hexdigest()


def image_id_sql(key: str) -> str:
    """Build the expression for image_id over the columns in IDENTITY_COLUMNS.

    The column `loras` holds hashes of the LoRA files.
    """
    return f"substr(sha256(concat('{key}|', {_identity_sql('seed')})), 1, {ID_DIGITS})"


def seed_sql(job_seed: int) -> str:
    """Build the expression for the seed: the row's seed plus the image index, or a derived seed.

    A derived seed depends on the row's id or, without an id, on its prompts and settings. Adding
    rows to the input changes no other seed.
    """
    by_text = f"concat('text|', {_identity_sql(NO_SEED_SQL)})"
    row = f"CASE WHEN id IS NULL THEN {by_text} ELSE concat('id|', id) END"
    digest = f"sha256(concat({job_seed}, '|', image_index, '|', {row}))"
    derived = f"CAST('0x' || substr({digest}, 1, {SEED_DIGITS}) AS BIGINT)"
    return f"coalesce(row_seed + image_index, {derived})"


def _identity_sql(seed: str) -> str:
    # Concatenation with null is null, and `concat` skips nulls. An image without optional columns
    # therefore keeps the id that it had before these columns were introduced.
    optional = ", ".join(
        f"'|{name}:' || strlen(CAST({name} AS VARCHAR)) || ':' || CAST({name} AS VARCHAR)"
        for name in OPTIONAL_IDENTITY_COLUMNS
    )
    return (
        "concat(strlen(prompt), ':', prompt, '|', strlen(negative_prompt), ':', negative_prompt, "
        f"'|', {seed}, '|', width, 'x', height, '|', steps, '|', guidance, '|', sampler, "
        f"{optional})"
    )


def images_sql(
    job: Job,
    facts: ModelFacts,
    model_key: str,
    violation_sql: str,
    passthrough: tuple[str, ...],
    empty_columns: tuple[str, ...] = (),
) -> str:
    """Build the query that expands rows of `input` to images, and keeps each rejected row once.

    `empty_columns` are null in all rows. In the result, `rule` is the value of `violation_sql`,
    `number` numbers the images of the whole input with gaps, and `row_hash` is a hash of a row that
    has an id.
    """
    carried = "".join(f", {name}" for name in passthrough)
    shortcuts = shortcuts_label(job.speed)
    # Rows with the same id must agree in all other columns.
    names = [column.name for column in PROMPT_COLUMNS if column.name != "id"]
    row_content = ["row_seed" if name == "seed" else name for name in names]
    return f"""
        WITH filled AS ({_filled_sql(job, facts, carried, empty_columns)}),
        judged AS (SELECT *, {violation_sql} AS rule FROM filled),
        expanded AS (
            SELECT *,
                   unnest(range(CASE WHEN rule IS NULL THEN images ELSE 1 END)) AS image_index,
                   CASE WHEN id IS NOT NULL THEN
                       hash({", ".join(row_content)})
                   END AS row_hash
            FROM judged),
        seeded AS (SELECT *, {seed_sql(job.defaults.seed)} AS seed FROM expanded),
        named AS (SELECT *, {image_id_sql(model_key)} AS image_id FROM seeded)
        SELECT image_id, image_index, row AS input_row, {", ".join(_planned_columns())}, truncated,
               {"NULL" if shortcuts is None else quote_literal(shortcuts)}::VARCHAR AS shortcuts
               {carried},
               row * {MAX_IMAGES_PER_ROW} + image_index AS number, rule, row_hash
        FROM named"""


def _planned_columns() -> list[str]:
    # Ids depend on the LoRA files, not on their names. The plan holds their names.
    names = [column.name for column in PROMPT_COLUMNS if column.name != "images"]
    planned = ["lora_names AS loras" if name == "loras" else name for name in names]
    return [*planned, INPUT_IMAGE_SET_COLUMN]


def _filled_sql(job: Job, facts: ModelFacts, carried: str, empty_columns: tuple[str, ...]) -> str:
    defaults = job.defaults
    width, height = _size_sql(job, facts, empty_columns)
    candidates = "" if job.keep is None else f" * {job.candidates}"
    image_set = ", ".join(
        f"CASE WHEN {name} IS NOT NULL THEN '{name}' END" for name in INPUT_IMAGE_COLUMNS
    )
    return f"""
            SELECT row, wrong, truncated, id, prompt,
                   CASE WHEN seed > {SEED.highest} THEN {SEED.highest + 1} ELSE seed END
                       AS row_seed,
                   coalesce(negative_prompt, {quote_literal(defaults.negative_prompt)})
                       AS negative_prompt,
                   coalesce(width, {width}) AS width,
                   coalesce(height, {height}) AS height,
                   coalesce(steps, {default_steps(job, facts)}) AS steps,
                   {_guidance_sql(job, facts)} + 0.0::DOUBLE AS guidance, -- never -0.0
                   coalesce(sampler, {quote_literal(defaults.sampler)}) AS sampler,
                   lora_key AS loras, lora_names, lora_fault,
                   nullif(concat_ws(',', {image_set}), '') AS {INPUT_IMAGE_SET_COLUMN},
                   {", ".join(INPUT_IMAGE_COLUMNS)},
                   coalesce(strength, CASE WHEN source_image IS NOT NULL
                                           THEN CAST({_strength(job, facts)} AS DOUBLE) END)
                       + 0.0::DOUBLE AS strength,
                   nullif(coalesce(guidance_rescale, {defaults.guidance_rescale or 0}), 0.0)
                       AS guidance_rescale, -- 0 is the same as none
                   coalesce(images, {defaults.images_per_prompt}){candidates} AS images {carried}
            FROM {_input_sql(empty_columns)}"""


def _size_sql(job: Job, facts: ModelFacts, empty_columns: tuple[str, ...]) -> tuple[str, str]:
    """Build the expressions for the default width and height.

    With a model that edits images, they have the shape of the first reference image and the area of
    the model's own size.
    """
    width, height = default_image_size(job, facts)
    has_own_size = job.defaults.width is not None or job.defaults.height is not None
    if has_own_size or not reads_references(job, facts) or "reference_images" in empty_columns:
        return str(width), str(height)
    round_to, multiple = "round", lcm(facts.size_multiple, REFERENCE_MULTIPLE)
    if not facts.own.call.takes_size:
        round_to, multiple = "ceil", lcm(facts.size_multiple, OWN_SIZE_MULTIPLE)
    first, second = REFERENCE_SIZE_COLUMNS

    def side(default: int, ratio: str) -> str:
        pixels = f"sqrt({width * height} * {ratio})"
        rounded = f"greatest(1, CAST({round_to}({pixels} / {multiple}) AS BIGINT)) * {multiple}"
        return f"CASE WHEN {first} IS NULL THEN {default} ELSE {rounded} END"

    return side(width, f"{first} / {second}"), side(height, f"{second} / {first}")


def reads_references(job: Job, facts: ModelFacts) -> bool:
    """Return whether the pipeline itself reads reference images, and not an IP-Adapter."""
    return facts.own.call.images_argument is not None and job.model.ip_adapter is None


def _strength(job: Job, facts: ModelFacts) -> float:
    """Return the default strength. A model that fills masks redraws all that they cover."""
    is_unset = job.defaults.strength == RowDefaults().strength
    return 1.0 if is_unset and fills_masks(facts.pipeline) else job.defaults.strength


def _guidance_sql(job: Job, facts: ModelFacts) -> str:
    """Build the expression for guidance; null if the model reads none or has its own schedule."""
    default = default_guidance(job, facts)
    guidance = f"coalesce(guidance, CAST({'NULL' if default is None else default} AS DOUBLE))"
    if not facts.own.reads_guidance:
        # Users write up to 1 for "none" with such models. A rule rejects higher values.
        guidance = f"CASE WHEN {guidance} > {NO_GUIDANCE} THEN {guidance} END"
    return guidance


def _input_sql(empty_columns: tuple[str, ...]) -> str:
    """Build the FROM clause, with empty columns as constants, which DuckDB evaluates once."""
    if not empty_columns:
        return "input"
    constants = ", ".join(
        f"NULL::{SQL_TYPES[column.kind]} AS {column.name}"
        for column in PROMPT_COLUMNS
        if column.name in empty_columns
    )
    return f"(SELECT * REPLACE ({constants}) FROM input)"


def quote_literal(text: str) -> str:
    """Quote a string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
