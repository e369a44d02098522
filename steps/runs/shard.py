"""One planned shard: its parts, and which of them are missing."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC
from itertools import compress, islice

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.models.passes import PassSizes
from imagekiln.steps.runs.commits import digest_of
from imagekiln.steps.runs.keys import (
    IMAGES_FOLDER,
    part_key,
    shard_key,
)
from imagekiln.steps.runs.parts import Part, check_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import (
    DRAWN_SIZE_SCHEMA,
    IMAGE_ROW_SCHEMA,
    ORIGIN_SCHEMA,
    added_fields,
    open_parquet,
    parse_parquet,
    read_whole,
)
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store

CHECK_THREADS = 8
MAX_LISTED = 100_000
SIZE_COLUMNS = ("width", "height")


def require_shard(store: Store, plan: Plan, shard: int) -> None:
    """Raise BadInput if the plan has no such shard."""
    last = len(plan.shards) - 1
    if not 0 <= shard <= last:
        raise BadInput(f"{store.uri}: has shards 0 to {last}, not {shard}.")


def read_shard(store: Store, plan: Plan, shard: int) -> tuple[Part, ...]:
    """Read the parts of a shard, in order. Their rows include the origin columns.

    Raises BadInput if the plan has no such shard, or the shard changed since planning.
    """
    rows = add_origin(read_shard_rows(store, plan, shard), plan)
    added = added_fields(plan.job)
    parts = []
    for number in range(plan.part_count(shard)):
        first = number * plan.part_images
        part_rows = rows.slice(first, plan.part_images)
        key = part_key(shard, number, plan.retry)
        parts.append(Part(key, part_rows, added))
    return tuple(parts)


def planned_shard_key(plan: Plan, shard: int) -> str:
    """Return the key of a shard of a run's plan, or of a retry's."""
    return shard_key(shard, plan.shards[shard].sha256, plan.retry)


def read_shard_rows(store: Store, plan: Plan, shard: int) -> pa.Table:
    """Read the planned image rows of a shard. Raises BadInput as `read_shard` does."""
    require_shard(store, plan, shard)
    key = planned_shard_key(plan, shard)
    where = store.uri_of(key)
    content = store.read(key)
    if digest_of(content) != plan.shards[shard].sha256:
        raise BadInput(f"{where}: is not what was planned. Restore it, or plan anew.")

    with parse_parquet(content, where) as parquet:
        return read_whole(parquet)


def add_origin(rows: pa.Table, plan: Plan) -> pa.Table:
    """Add the columns of ORIGIN_SCHEMA, which follow from the plan, to image rows."""
    values = (
        plan.run_id,
        model_label(plan).name,  # for a local folder, only the last name
        plan.job.model.revision or plan.model.digest,
        plan.created_at.astimezone(UTC).replace(tzinfo=None),
    )
    for field, value in zip(ORIGIN_SCHEMA, values, strict=True):
        column = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        rows = rows.append_column(field, column)
    return rows


def read_row_schema(store: Store, plan: Plan) -> pa.Schema:
    """Read the columns that the rows of the plan's parts have.

    Without shards, the schema has the columns common to all runs, and the sources of prompts as
    strings. The types of carried columns are known only from shards.
    """
    job = plan.job
    origins = []
    for name in job.carried_columns:
        if name not in job.carry:
            origin = pa.field(name, pa.string())
            origins.append(origin)
    schema = pa.schema([*IMAGE_ROW_SCHEMA, *origins])
    if plan.shards:
        with open_parquet(store, planned_shard_key(plan, 0)) as parquet:
            schema = parquet.schema_arrow
    return pa.schema([*schema, *ORIGIN_SCHEMA])


def count_images(parts: Sequence[Part]) -> int:
    """Count the images of the parts."""
    return sum(part.rows.num_rows for part in parts)


def used_lora_names(parts: Sequence[Part]) -> set[str]:
    """Return the names of the LoRAs used by the parts' images."""
    names: set[str] = set()
    for part in parts:
        if "loras" not in part.rows.column_names:
            continue
        for text in part.rows["loras"].unique().to_pylist():
            names.update(lora_weights(text))
    return names


def missing_parts(store: Store, parts: Sequence[Part]) -> list[Part]:
    """Return the parts that are not committed.

    Raises BadInput if a committed part has other images.
    """

    def is_missing(part: Part) -> bool:
        if not store.exists(part.key):
            return True
        check_part(store, part)
        return False

    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        missing = list(pool.map(is_missing, parts))
    return list(compress(parts, missing))


def count_committed_images(store: Store, plan: Plan) -> int:
    """Count the images of listed parts. In a very large run, only the first parts are listed."""
    listed = {entry.key for entry in islice(store.list_folder(IMAGES_FOLDER), MAX_LISTED)}
    committed = 0
    for number, shard in enumerate(plan.shards):
        for part in range(plan.part_count(number)):
            images_from_it = shard.images - part * plan.part_images
            if part_key(number, part) in listed:
                committed += min(plan.part_images, images_from_it)
    return committed


def has_missing_parts(store: Store, plan: Plan, shards: Sequence[int]) -> bool:
    """Return whether a part of any of these shards is missing. Raises as `missing_parts` does."""

    def is_incomplete(index: int) -> bool:
        parts = read_shard(store, plan, shards[index])
        return bool(missing_parts(store, parts))

    with closing(map_ordered(is_incomplete, len(shards))) as results:
        return any(results)


def with_final_sizes(rows: pa.Table, sizes: PassSizes) -> pa.Table:
    """Set the sizes in planned rows to those after all passes, and add the sizes before."""
    if not sizes.alters_images:
        return rows
    widths = rows["width"].to_pylist()
    heights = rows["height"].to_pylist()
    drawn = list(zip(widths, heights, strict=True))
    final = {}
    for size in set(drawn):
        final[size] = sizes.final(size)
    for axis, name in enumerate(SIZE_COLUMNS):
        rows = rows.append_column(DRAWN_SIZE_SCHEMA[axis], rows[name])
        field = rows.schema.field(name)
        sides = [final[size][axis] for size in drawn]
        index = rows.schema.get_field_index(name)
        column = pa.array(sides, field.type)
        rows = rows.set_column(index, field, column)
    return rows.combine_chunks()


def sum_work(rows: pa.Table, sizes: PassSizes) -> float:
    """Sum the work of images and their diffusion passes, in pixels times steps."""
    has_drawn = DRAWN_SIZE_COLUMNS[0] in rows.column_names
    drawn_sizes = DRAWN_SIZE_COLUMNS if has_drawn else SIZE_COLUMNS
    groups = rows.group_by(
        [*drawn_sizes, "steps", "strength"],
        use_threads=False,
    )
    counted = groups.aggregate([([], "count_all")])
    columns = [column.to_pylist() for column in counted.columns]
    work = 0.0
    for width, height, steps, strength, images in zip(*columns, strict=True):
        drawn = width * height * steps
        if strength is not None:
            drawn *= strength
        in_passes = sizes.work((width, height), steps)
        work += images * (drawn + in_passes)
    return work
