"""Time and memory of aggregating a run's metadata, beside pyarrow copying the same columns.

Example: python tests/bench/aggregate.py --images 1_000_000 10_000_000
"""

import argparse
import hashlib
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.imaging.codecs import encode_image
from imagekiln.steps.job.execution import JobLimits, PartSettings
from imagekiln.steps.job.execution import ShardSettings as ShardSize
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.output import Png
from imagekiln.steps.job.rows import RowDefaults
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.attempts import AttemptFile, Spent
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.parts import part_to_parquet
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import ShardStats, StageSeconds
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
    parquet_options,
)
from imagekiln.steps.storage import open_store
from tests.bench.inputs import write_prompts
from tests.bench.measure import Usage, machine, measure_usage, scratch_folder, table, usage_cells

PART_IMAGES = 256
SHARD_IMAGES = 20 * PART_IMAGES
FAILED_EVERY = 1000  # images
METADATA = [*IMAGE_ROW_SCHEMA.names, *ORIGIN_SCHEMA.names, *OUTCOME_SCHEMA.names]
HEADER = ("images", "shards", "", "seconds", "CPU seconds", "images/s", "share of copy", "peak MiB")


def write_run(folder: Path, images: int, write: Callable[[str, int], None] | None = None) -> None:
    """Plan `images` rows and write their parts as pods would: `write`, or with tiny pictures.

    A few rows are invalid, so the run has slightly fewer images.
    """
    prompts = folder / "prompts.parquet"
    write_prompts(prompts, images, several_shapes=False)
    job = Job(
        name="bench",
        run_id="run",
        prompts=str(prompts),
        output=str(folder),
        model=ModelSettings(id="bundled:shapes", dtype="float32"),
        defaults=RowDefaults(steps=20),
        part=PartSettings(images=PART_IMAGES),
        shard=ShardSize(images=SHARD_IMAGES),
        limits=JobLimits(failed_share=0.01),
    )
    planned = make_plan(job)
    (folder / "run" / "images").mkdir()
    with ProcessPoolExecutor() as pool:
        list(
            pool.map(
                write or write_shard,
                [planned.uri] * len(planned.plan.shards),
                range(len(planned.plan.shards)),
            )
        )


def write_shard(uri: str, number: int) -> None:
    """Write the parts and the statistics of one shard, without the slow syncing of pods."""
    store = open_store(uri)
    frozen = load_plan(store)
    picture = encode_image(
        np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8), Png()
    )
    for part in read_shard(store, frozen, number):
        images = [
            _encoded_image(place, name, picture)
            for place, name in enumerate(part.rows["image_id"].to_pylist())
        ]
        Path(store.uri_of(part.key)).write_bytes(part_to_parquet(part.rows, images))
    count = frozen.shards[number].images
    seconds = StageSeconds(total=60.0, denoise=55.0)
    attempt = AttemptFile(store, frozen, number)
    parts = frozen.part_count(number)
    attempt.add_stats(ShardStats(number, 1, count, parts, 8, "cuda", seconds))
    attempt.write(Spent(seconds=60.0, useful=60.0, attempts=1, ended=1), "complete")


def _encoded_image(place: int, name: str, picture: bytes) -> EncodedImage:
    if place % FAILED_EVERY == 0:
        return EncodedImage(place, "failed", "RuntimeError: a prompt that no model likes")
    pixels_digest = hashlib.sha256(name.encode()).hexdigest()
    return EncodedImage(
        place, "ok", None, picture, hashlib.sha256(picture).hexdigest(), pixels_digest
    )


def copy_metadata(run: Path) -> None:
    """Read the same columns of every part with pyarrow and write them as one table per shard."""
    frozen = load_plan(open_store(str(run)))
    for number in range(len(frozen.shards)):
        keys = [part_key(number, part) for part in range(frozen.part_count(number))]
        read = [
            pq.read_table(run / key, columns=METADATA, page_checksum_verification=True)
            for key in keys
        ]
        whole = pa.concat_tables(read)
        pq.write_table(whole, run / f"copy-{number:05d}.parquet", **parquet_options(whole.schema))


def bench(images: int) -> list[tuple[str, ...]]:
    """Aggregate a run of `images` images and copy its metadata, each in its own process."""
    with scratch_folder() as folder:
        measure_usage(write_run, folder, images)
        shards = len(list((folder / "run" / "shards").iterdir()))
        copied = measure_usage(copy_metadata, folder / "run")
        aggregated = measure_usage(aggregate, str(folder / "run"))
        return [
            _line(images, shards, "copy", copied, copied),
            _line(images, shards, "aggregate", aggregated, copied),
        ]


def _line(images: int, shards: int, what: str, took: Usage, copied: Usage) -> tuple[str, ...]:
    return (
        f"{images:,}",
        f"{shards:,}",
        what,
        *usage_cells(images, took, copied),
    )


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    options = parser.parse_args()
    print(machine())
    print(table(HEADER, [line for images in options.images for line in bench(images)]))


if __name__ == "__main__":
    main()
