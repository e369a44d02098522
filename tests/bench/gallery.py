"""The gallery over many images: seconds until there is a page, and of searches in all prompts.

Example: python -m tests.bench.gallery --images 10_000_000 --shard 4_000

Writes runs that have nothing but a plan and manifests, and opens them as `imagekiln gallery` does.
Beside it, pyarrow.dataset scans the same files for the same rows.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from imagekiln.steps.gallery.gallery import open_gallery
from imagekiln.steps.gallery.index import RUN_COLUMN
from imagekiln.steps.gallery.queries import Condition, PageQuery
from imagekiln.steps.runs.commits import NO_COMMIT, Head, create_commit
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.manifest import write_manifest
from imagekiln.steps.runs.plan import Shard, load_plan, plan_to_json
from imagekiln.steps.runs.shard import read_row_schema
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
)
from imagekiln.steps.storage import open_store
from tests import runs
from tests.bench.measure import machine, scratch_folder, table

RUNS = 2
WORDS = 2_000
PROMPT_WORDS = 12
RARE_WORDS = "copper kettle"
RARE_EVERY = 500  # shards
PAGE_IMAGES = 48
HEADER = ("", "seconds", "CPU seconds", "rows")


@dataclass(frozen=True, slots=True)
class Timing:
    """A question, and how long its answer took."""

    name: str
    seconds: float
    cpu_seconds: float
    rows: int


def measure(name: str, work: Callable[[], int]) -> Timing:
    """Time a function that returns a number of rows."""
    started, cpu_started = time.perf_counter(), time.process_time()
    rows = work()
    return Timing(name, time.perf_counter() - started, time.process_time() - cpu_started, rows)


def write_runs(folder: Path, images: int, shard_images: int) -> str:
    """An output with runs of equal size; returns its URI."""
    output = str(folder / "out")
    shards = images // RUNS // shard_images
    for number in range(RUNS):
        rows = [{"prompt": "a prompt", "topic": "shapes"}]
        planned = runs.planned(folder, output, rows, run_id=f"night-{number}", carry=["topic"])
        store = open_store(planned.uri)
        plan = load_plan(store)
        schema = pa.schema(
            [
                *read_row_schema(store, plan),
                *OUTCOME_SCHEMA,
                *LOCATION_SCHEMA,
                *NEAR_DUPLICATE_SCHEMA,
            ]
        )
        shard = Shard(shard_images, plan.shards[0].sha256)
        counts = replace(plan.counts, images=shards * shard_images)
        larger = replace(plan, shards=(shard,) * shards, counts=counts)
        store.replace(PLAN_KEY, plan_to_json(larger))
        rng = np.random.default_rng(number)
        manifests = tuple(
            write_manifest(store, place, synthetic_manifest(rng, schema, place, shard_images))
            for place in range(shards)
        )
        create_commit(store, Head(), replace(NO_COMMIT, manifests=manifests))
    return output


def synthetic_manifest(
    rng: np.random.Generator, schema: pa.Schema, shard: int, images: int
) -> pa.Table:
    """A manifest with random prompts, ids, measures and hashes; of files, a few hashes repeat."""
    digits = rng.bytes(16 * images).hex()
    vocabulary = np.array([f"{word:x}word" for word in range(WORDS)])
    prompts = [
        " ".join(words) for words in vocabulary[rng.integers(0, WORDS, (images, PROMPT_WORDS))]
    ]
    if shard % RARE_EVERY == RARE_EVERY - 1:
        prompts[images // 2] = f"A {RARE_WORDS.title()} on a stove"
    hashes = [digits[place % 64 * 32 :][:64] for place in range(images)]
    values: dict[str, object] = {
        "image_id": [digits[start : start + 32] for start in range(0, 32 * images, 32)],
        "prompt": prompts,
        "negative_prompt": ["blurry"] * images,
        "image_index": np.zeros(images, np.int64),
        "input_row": np.arange(images) + shard * images,
        "seed": np.arange(images) + shard * images,
        "width": np.full(images, 1024),
        "height": np.full(images, 1024),
        "steps": np.full(images, 30),
        "guidance": np.full(images, 5.0),
        "sampler": ["default"] * images,
        "topic": vocabulary[rng.integers(0, 20, images)].tolist(),
        "status": np.where(rng.random(images) < 0.999, "ok", "failed").tolist(),
        "byte_size": rng.integers(900_000, 1_500_000, images),
        "sha256": hashes,
        "pixels_sha256": hashes,
        "marks": [["low_contrast"] if place % 97 == 0 else None for place in range(images)],
        "contrast": rng.random(images, np.float32),
        "saturation": rng.random(images, np.float32),
        "phash": rng.integers(-(2**63), 2**63 - 1, images),
        "part": [f"images/{shard:05d}-{place // 64:04d}.parquet" for place in range(images)],
        "byte_offset": np.arange(images) % 64 * 1_000_000,
    }
    columns = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else pa.nulls(images, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def measure_gallery(output: str) -> list[Timing]:
    """The gallery's times, from a process that has imported everything."""
    timings = []
    started, cpu_started = time.perf_counter(), time.process_time()
    with open_gallery(output) as gallery:
        first = gallery.page(PageQuery(limit=PAGE_IMAGES))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        timings.append(Timing("first page, from the start", seconds, cpu, len(first)))
        while not gallery.state().is_complete:
            time.sleep(0.05)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        timings.append(Timing("all indexed, from the start", seconds, cpu, gallery.state().indexed))

        rare = (Condition("prompt", "contains", RARE_WORDS),)
        failed = (Condition("status", "is", "failed"),)
        last_run = (Condition(RUN_COLUMN, "is", "night-0"),)
        last = first[-1]
        questions: list[tuple[str, Callable[[], int]]] = [
            ("page", lambda: len(gallery.page(PageQuery(limit=PAGE_IMAGES)))),
            ("rare words", lambda: len(gallery.page(PageQuery(rare)))),
            ("rare words, again", lambda: len(gallery.page(PageQuery(rare)))),
            ("rare words counted", lambda: sum(gallery.count(rare).values())),
            ("failed", lambda: len(gallery.page(PageQuery(failed)))),
            ("another run", lambda: len(gallery.page(PageQuery(last_run)))),
            ("sorted by contrast", lambda: len(gallery.page(PageQuery(sort="contrast")))),
            ("sorted, with rare words", lambda: len(gallery.page(PageQuery(rare, "contrast")))),
            (
                "row and neighbors",
                lambda: len(gallery.details(last.run, last.image_id, last.number).neighbors),
            ),
            ("mean by run", lambda: len(gallery.trends("contrast"))),
        ]
        timings += [measure(name, work) for name, work in questions]
    return timings


def measure_peer(output: str) -> list[Timing]:
    """The same questions to pyarrow.dataset."""
    folders = [f"{output}/night-{number}/manifest" for number in range(RUNS)]
    names = ["image_id", "status", "prompt", "error"]

    def search() -> int:
        manifests = ds.dataset([ds.dataset(folder) for folder in folders])
        expressions = [
            pc.match_substring(ds.field("prompt"), word, ignore_case=True)
            for word in RARE_WORDS.split()
        ]
        return int(manifests.to_table(names, filter=expressions[0] & expressions[1]).num_rows)

    def page() -> int:
        manifests = ds.dataset([ds.dataset(folder) for folder in folders])
        return int(manifests.head(PAGE_IMAGES, columns=names).num_rows)

    return [measure("pyarrow: page", page), measure("pyarrow: rare words", search)]


def main() -> None:
    """Print both as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000_000)
    parser.add_argument("--shard", type=int, default=4_000)
    options = parser.parse_args()
    print(machine())
    with scratch_folder() as folder:
        output = write_runs(folder, options.images, options.shard)
        timings = [*measure_gallery(output), *measure_peer(output)]
        rows = [
            (timing.name, f"{timing.seconds:.2f}", f"{timing.cpu_seconds:.2f}", f"{timing.rows:,}")
            for timing in timings
        ]
        print(table(HEADER, rows))


if __name__ == "__main__":
    main()
