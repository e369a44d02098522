"""Time and memory of an export, beside pyarrow copying the same parts without looking at them.

Example: python -m tests.bench.export --images 1_000_000 --rows 10_000_000

Writes two runs that have nothing but a plan, manifests and parts, and share some images. `--images`
exports small ones in both formats, `--rows` the smallest there are, so that rows are all the work.
Each is done in a process of its own, and what it wrote is removed before the next. A tar takes some
four kilobytes an image more than its file: a million take 5 GB, ten million rows 6 GB, at most.
"""

import argparse
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.export.settings import read_settings
from imagekiln.steps.export.step import export
from imagekiln.steps.job.output import ExportFormat
from imagekiln.steps.runs.commits import NO_COMMIT, Head, create_commit
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, part_key
from imagekiln.steps.runs.manifest import write_manifest
from imagekiln.steps.runs.parts import (
    image_column,
    image_table_options,
    image_table_schema,
)
from imagekiln.steps.runs.plan import Shard, load_plan, plan_to_json
from imagekiln.steps.runs.registry import RunEntry, append_run_entry
from imagekiln.steps.runs.shard import read_row_schema
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
)
from imagekiln.steps.storage import open_store
from tests.bench.measure import Usage, machine, measure_usage, scratch_folder, table, usage_cells

FILE_SIZE = "100MB"
RUNS = 2
PART_IMAGES = 1024
SHARD_IMAGES = 8 * PART_IMAGES
SHARED_EVERY = 100  # of so many shards, one has the images of the other run's
WORDS = 2000
ID_BYTES = 16
LENGTH_BYTES = 4  # before each value of a page
HEADER = ("images", "bytes", "", "seconds", "CPU seconds", "images/s", "share of copy", "peak MiB")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a hub limits: the files of an export, the most in a folder, and the largest."""

    files: int
    in_folder: int
    largest: int

    def __str__(self) -> str:
        """A line under the table."""
        return (
            f"{self.files:,} files of data, at most {self.in_folder:,} in a folder and "
            f"{self.largest:,} bytes in a file"
        )


def write_runs(folder: Path, images: int, size: int) -> None:
    """Write `out` with runs that have so many images together, of about `size` bytes each."""
    from tests import runs  # imports torch, whose memory would be measured

    shards = -(-images // RUNS // SHARD_IMAGES)
    picture = np.random.default_rng(0).bytes(max(1, size - ID_BYTES))
    for number in range(RUNS):
        rows = [{"prompt": "a prompt"}]
        planned = runs.planned(folder, str(folder / "out"), rows, run_id=f"night-{number}")
        store = open_store(planned.uri)
        plan = load_plan(store)
        row_schema = read_row_schema(store, plan)
        counts = replace(plan.counts, images=shards * SHARD_IMAGES)
        shard = Shard(SHARD_IMAGES, plan.shards[0].sha256)
        larger = replace(plan, shards=(shard,) * shards, counts=counts)
        store.replace(PLAN_KEY, plan_to_json(larger))
        manifests = []
        for place in range(shards):
            is_shared = place % SHARED_EVERY == 0
            rng = np.random.default_rng([place, 0 if is_shared else number])
            manifest = write_shard(Path(planned.uri), rng, row_schema, place, picture)
            manifests.append(write_manifest(store, place, manifest))
        finished = replace(
            NO_COMMIT, manifests=tuple(manifests), is_complete=True, is_finished=True
        )
        create_commit(store, Head(), finished)
        store.create(SUCCESS_KEY, b"")
        append_run_entry(str(folder / "out"), RunEntry(f"night-{number}", "night"))


def write_shard(
    run: Path, rng: np.random.Generator, row_schema: pa.Schema, number: int, picture: bytes
) -> pa.Table:
    """Write the parts of one shard, whose images end with their ids. Returns its manifest."""
    ids = rng.bytes(ID_BYTES * SHARD_IMAGES)
    contents = [picture + ids[start : start + ID_BYTES] for start in range(0, len(ids), ID_BYTES)]
    outcomes = pa.schema([*row_schema, *OUTCOME_SCHEMA])
    rows = synthetic_rows(rng, outcomes, ids, contents, number)
    manifests = []
    for part in range(SHARD_IMAGES // PART_IMAGES):
        start = part * PART_IMAGES
        part_rows = rows.slice(start, PART_IMAGES)
        key = part_key(number, part)
        part_contents = contents[start : start + PART_IMAGES]
        offsets = write_part(run / key, part_rows, part_contents)
        located = [pa.array([key] * PART_IMAGES), pa.array(offsets)]
        columns = [*part_rows.columns, *located, pa.nulls(PART_IMAGES, pa.string())]
        names = pa.schema([*outcomes, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA])
        manifests.append(pa.Table.from_arrays(columns, schema=names))
    return pa.concat_tables(manifests).combine_chunks()


def synthetic_rows(
    rng: np.random.Generator, schema: pa.Schema, ids: bytes, contents: Sequence[bytes], shard: int
) -> pa.Table:
    """Rows with random ids and prompts; what most runs have alike is alike."""
    count = len(contents)
    words = pa.array([f"{word:x}word" for word in range(WORDS)])
    prompts = [words.take(pa.array(rng.integers(0, WORDS, count))) for _ in range(8)]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    numbers = np.arange(count) + shard * count
    values: dict[str, pa.Array] = {
        "image_id": _hex_texts(ids),
        "prompt": pc.binary_join_element_wise(*prompts, " "),
        "negative_prompt": pa.repeat("blurry", count),
        "image_index": pa.repeat(pa.scalar(0, pa.int64()), count),
        "input_row": pa.array(numbers),
        "seed": pa.array(numbers),
        "width": pa.repeat(pa.scalar(1024, pa.int64()), count),
        "height": pa.repeat(pa.scalar(1024, pa.int64()), count),
        "steps": pa.repeat(pa.scalar(30, pa.int64()), count),
        "guidance": pa.repeat(5.0, count),
        "sampler": pa.repeat("default", count),
        "status": pa.repeat("ok", count),
        "byte_size": pa.repeat(pa.scalar(len(contents[0]), pa.int64()), count),
        "sha256": pa.array(digests),
        "pixels_sha256": pa.repeat(digests[0], count),
        "contrast": pa.array(rng.random(count, np.float32)),
        "phash": pa.array(rng.integers(-(2**63), 2**63 - 1, count)),
    }
    columns = [
        values[field.name] if field.name in values else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _hex_texts(ids: bytes) -> pa.Array:
    digits = ids.hex().encode()
    length = 2 * ID_BYTES
    ends = np.arange(0, len(digits) + 1, length, dtype=np.int32)
    buffers = [pa.py_buffer(ends), pa.py_buffer(digits)]
    return pa.StringArray.from_buffers(len(digits) // length, *buffers)


def write_part(path: Path, rows: pa.Table, contents: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Write a part as runs have them, and return the offset of each image in it."""
    names = [f"{image_id}.png" for image_id in rows["image_id"].to_pylist()]
    schema = image_table_schema(rows.schema)
    table = pa.Table.from_arrays([image_column(contents, names), *rows.columns], schema=schema)
    path.parent.mkdir(exist_ok=True)
    options = image_table_options(schema)
    pq.write_table(table, path, row_group_size=len(rows), data_page_size=2**30, **options)
    first = path.read_bytes().index(contents[0])
    steps = [len(content) + LENGTH_BYTES for content in contents[:-1]]
    return np.cumsum([first, *steps], dtype=np.int64)


def copy_parts(output: Path, target: Path) -> None:
    """Copy all parts with pyarrow, into files of the same size."""
    size = read_settings(file_size=FILE_SIZE).file_size
    target.mkdir()
    paths = sorted(output.glob("night-*/images/*"))
    schema = pq.read_schema(paths[0])
    remaining = list(reversed(paths))
    while remaining:
        file = target / f"{len(remaining)}.parquet"
        with pq.ParquetWriter(file, schema, **image_table_options(schema)) as writer:
            while remaining and file.stat().st_size < size:
                part = pq.read_table(remaining.pop(), page_checksum_verification=True)
                writer.write_table(part.cast(schema))


def export_output(output: Path, target: Path, kind: ExportFormat) -> None:
    """Export the output."""
    export(str(output), str(target), read_settings(kind, FILE_SIZE))


def bench(images: int, size: int, kinds: Sequence[ExportFormat]) -> list[tuple[str, ...]]:
    """Export runs with so many images of this size, and copy their parts."""
    with scratch_folder() as folder:
        measure_usage(write_runs, folder, images, size)
        output = folder / "out"
        count = sum(1 for _ in output.glob("night-*/images/*")) * PART_IMAGES

        def measure(what: str, work: Callable[..., None], *arguments: object) -> Usage:
            target = folder / what
            usage = measure_usage(work, output, target, *arguments)
            _report(f"{what} of {count:,} in {usage.cpu_seconds:.1f} CPU s: {_layout(target)}")
            shutil.rmtree(target)
            return usage

        copied = measure("copy", copy_parts)
        lines = [("copy", copied)]
        lines += [(kind, measure(kind, export_output, kind)) for kind in kinds]
        return [
            (f"{count:,}", f"{size:,}", what, *usage_cells(count, took, copied))
            for what, took in lines
        ]


def _layout(target: Path) -> Layout:
    data = target / "data" if (target / "data").is_dir() else target
    paths = [path for path in data.rglob("*") if path.is_file()]
    return Layout(
        len(paths),
        max(Counter(path.parent for path in paths).values()),
        max(path.stat().st_size for path in paths),
    )


def _report(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, help="small images, in both formats")
    parser.add_argument("--size", type=int, default=1000, help="bytes of each of them")
    parser.add_argument("--rows", type=int, help="images of 80 bytes, in Parquet")
    options = parser.parse_args()
    _report(machine())
    lines = []
    if options.images:
        lines += bench(options.images, options.size, ["parquet", "webdataset"])
    if options.rows:
        lines += bench(options.rows, 80, ["parquet"])
    print(table(HEADER, lines))


if __name__ == "__main__":
    main()
