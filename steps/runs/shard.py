"""One shard as the plan lists it: its image rows, its parts, and which of them are missing."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.runs.keys import index_key, part_key, shard_key
from imagekiln.steps.runs.parts import Part, check_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import from_parquet
from imagekiln.steps.storage.store import Store

CHECKERS = 8


def read_shard(store: Store, plan: Plan, shard: int) -> tuple[Part, ...]:
    """The parts of a shard, in order. Raises BadInput where there is no such shard, or it is not the plan's."""
    if not 0 <= shard < len(plan.shards):
        raise BadInput(f"{store.uri}: has shards 0 to {len(plan.shards) - 1}, not {shard}.")
    content = store.read(shard_key(shard))
    if hashlib.sha256(content).hexdigest() != plan.shards[shard].sha256:
        raise BadInput(
            f"{store.uri_of(shard_key(shard))}: is not what was planned. Restore it, or plan anew."
        )
    rows = from_parquet(content, store.uri_of(shard_key(shard)))
    size = plan.part_images
    name = part_key if plan.job.format == "parquet" else index_key
    return tuple(
        Part(name(shard, part), rows.slice(part * size, size))
        for part in range(plan.part_count(shard))
    )


def count_images(wanted: Sequence[Part]) -> int:
    """How many images the parts hold."""
    return sum(part.rows.num_rows for part in wanted)


def used_lora_names(wanted: Sequence[Part]) -> set[str]:
    """The names of the LoRAs that the parts' images are drawn with."""
    columns = [part.rows["loras"] for part in wanted if "loras" in part.rows.column_names]
    return {
        name
        for column in columns
        for text in column.unique().to_pylist()
        for name in lora_weights(text)
    }


def missing_parts(store: Store, wanted: Sequence[Part]) -> list[Part]:
    """The parts that are not there. Raises BadInput where one is there and holds other images."""
    with ThreadPoolExecutor(CHECKERS) as pool:
        there = list(pool.map(lambda part: store.exists(part.key), wanted))
        found = [part for part, here in zip(wanted, there, strict=True) if here]
        list(pool.map(lambda part: check_part(store, part.key, part.rows), found))
    return [part for part, here in zip(wanted, there, strict=True) if not here]
