"""One shard as the plan lists it: its parts, and which of them are missing."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.keys import shard_key
from imagekiln.steps.runs.parts import Part, check_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import from_parquet
from imagekiln.steps.storage.store import Store

CHECK_THREADS = 8


def read_shard(store: Store, plan: Plan, shard: int) -> tuple[Part, ...]:
    """The parts of a shard, in order.

    Raises BadInput where the plan has no such shard, or the shard changed since planning.
    """
    if not 0 <= shard < len(plan.shards):
        raise BadInput(f"{store.uri}: has shards 0 to {len(plan.shards) - 1}, not {shard}.")
    content = store.read(shard_key(shard))
    where = store.uri_of(shard_key(shard))
    if hashlib.sha256(content).hexdigest() != plan.shards[shard].sha256:
        raise BadInput(f"{where}: is not what was planned. Restore it, or plan anew.")
    rows = from_parquet(content, where)
    layout = format_of(plan.job)
    size = plan.part_images
    return tuple(
        Part(layout.commit_key(shard, part), rows.slice(part * size, size))
        for part in range(plan.part_count(shard))
    )


def count_images(parts: Sequence[Part]) -> int:
    """How many images the parts have."""
    return sum(part.rows.num_rows for part in parts)


def used_lora_names(parts: Sequence[Part]) -> set[str]:
    """The names of the LoRAs that the parts' images are drawn with."""
    columns = [part.rows["loras"] for part in parts if "loras" in part.rows.column_names]
    texts = {text for column in columns for text in column.unique().to_pylist()}
    return {name for text in texts for name in lora_weights(text)}


def missing_parts(store: Store, parts: Sequence[Part]) -> list[Part]:
    """The parts that are not committed. Raises BadInput where a committed part has other images."""
    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        is_committed = list(pool.map(lambda part: store.exists(part.key), parts))
        committed = [part for part, exists in zip(parts, is_committed, strict=True) if exists]
        list(pool.map(lambda part: check_part(store, part.key, part.rows), committed))
    return [part for part, exists in zip(parts, is_committed, strict=True) if not exists]
