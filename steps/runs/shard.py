"""One shard as the plan lists it: its parts, and which of them are missing."""

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from itertools import compress, islice
from pathlib import PurePosixPath

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.runs.added_columns import added_fields
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.keys import PLAN_KEY, shard_key
from imagekiln.steps.runs.parts import Part, check_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    ORIGIN_SCHEMA,
    open_parquet,
    parse_parquet,
    read_whole,
)
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.storage.store import Store

CHECK_THREADS = 8
MAX_LISTED = 100_000
PART_NAME_PATTERN = re.compile(r"(\d{5,})-(\d{4,})\.parquet")


def require_shard(store: Store, plan: Plan, shard: int) -> None:
    """Raise BadInput where the plan has no such shard."""
    last = len(plan.shards) - 1
    if not 0 <= shard <= last:
        raise BadInput(f"{store.uri}: has shards 0 to {last}, not {shard}.")


def read_shard(store: Store, plan: Plan, shard: int) -> tuple[Part, ...]:
    """The parts of a shard, in order, whose rows also say where their images come from.

    Raises BadInput where the plan has no such shard, or the shard changed since planning.
    """
    rows = add_origin(read_shard_rows(store, plan, shard), plan)
    part_format = format_of(plan.job)
    added = added_fields(plan.job)
    parts = []
    for number in range(plan.part_count(shard)):
        first = number * plan.part_images
        part_rows = rows.slice(first, plan.part_images)
        commit_key = part_format.commit_key(shard, number)
        parts.append(Part(commit_key, part_rows, added))
    return tuple(parts)


def read_shard_rows(store: Store, plan: Plan, shard: int) -> pa.Table:
    """The image rows of a shard, as they were planned. Raises BadInput as `read_shard` does."""
    require_shard(store, plan, shard)
    key = shard_key(shard)
    where = store.uri_of(key)
    content = store.read(key)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != plan.shards[shard].sha256:
        raise BadInput(f"{where}: is not what was planned. Restore it, or plan anew.")

    with parse_parquet(content, where) as parquet:
        rows = read_whole(parquet)
    planned_images = plan.shards[shard].images
    if rows.num_rows != planned_images:
        raise BadInput(
            f"{where}: has {rows.num_rows} images, and {store.uri_of(PLAN_KEY)} says "
            f"{planned_images}. Restore the plan."
        )
    return rows


def add_origin(rows: pa.Table, plan: Plan) -> pa.Table:
    """The image rows with the columns of ORIGIN_SCHEMA, which follow from the plan."""
    values = (
        plan.run_id,
        model_label(plan).name,  # of a local folder, only the last name
        plan.job.model.revision or plan.model.digest,
        plan.created_at.astimezone(UTC).replace(tzinfo=None),
    )
    for field, value in zip(ORIGIN_SCHEMA, values, strict=True):
        column = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        rows = rows.append_column(field, column)
    return rows


def read_row_schema(store: Store, plan: Plan) -> pa.Schema:
    """The columns of the rows of the plan's parts.

    Without shards, those that all runs have, and those that say where prompts are from, which are
    texts. What `carry` names has types that only shards tell.
    """
    job = plan.job
    origins = [pa.field(name, pa.string()) for name in job.carried_columns if name not in job.carry]
    schema = pa.schema([*IMAGE_ROW_SCHEMA, *origins])
    if plan.shards:
        with open_parquet(store, shard_key(0)) as parquet:
            schema = parquet.schema_arrow
    return pa.schema([*schema, *ORIGIN_SCHEMA])


def count_images(parts: Sequence[Part]) -> int:
    """How many images the parts have."""
    return sum(part.rows.num_rows for part in parts)


def used_lora_names(parts: Sequence[Part]) -> set[str]:
    """The names of the LoRAs that the parts' images are drawn with."""
    names: set[str] = set()
    for part in parts:
        if "loras" not in part.rows.column_names:
            continue
        for text in part.rows["loras"].unique().to_pylist():
            names.update(lora_weights(text))
    return names


def missing_parts(store: Store, parts: Sequence[Part]) -> list[Part]:
    """The parts that are not committed. Raises BadInput where a committed part has other images."""

    def is_missing(part: Part) -> bool:
        if not store.exists(part.key):
            return True
        check_part(store, part.key, part.rows)
        return False

    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        missing = list(pool.map(is_missing, parts))
    return list(compress(parts, missing))


def count_committed_images(store: Store, plan: Plan) -> int:
    """The images of the parts that a listing shows; of a very large run, the first of them."""
    first_key = format_of(plan.job).commit_key(0, 0)
    folder = str(PurePosixPath(first_key).parent)
    listed = islice(store.list_folder(folder), MAX_LISTED)
    names = [PurePosixPath(entry.key).name for entry in listed]
    return sum(_count_images(name, plan) for name in names)


def _count_images(name: str, plan: Plan) -> int:
    """The images of the part with this name; 0 where it is none of the plan's."""
    match = PART_NAME_PATTERN.fullmatch(name)
    if match is None or int(match[1]) >= len(plan.shards):
        return 0
    shard = plan.shards[int(match[1])]
    first_image = int(match[2]) * plan.part_images
    return max(0, min(plan.part_images, shard.images - first_image))
