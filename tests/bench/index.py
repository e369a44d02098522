"""Time and memory of finding the images that earlier runs made, beside DuckDB's anti-join.

Example: python tests/bench/index.py --existing 10_000_000 100_000_000 --new 1_000_000

Half of the new images exist in earlier runs. DuckDB reads the same index files: once without a
memory limit, once with the limit that planning sets.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.plan.existing_images import create_existing_table
from imagekiln.steps.runs.commits import NO_COMMIT, Head, create_commit
from imagekiln.steps.runs.image_id_index import (
    IdArray,
    add_image_ids,
    collect_image_ids,
    write_image_index,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import MEMORY_LIMIT, Database
from tests.bench.measure import Usage, machine, measure_usage, scratch_folder, table, usage_cells

RUNS = 5
CHUNK = 250_000  # ids
ID_BYTES = 16
UNIQUE = "CREATE TABLE unique_images AS FROM read_parquet('{}')"
LEFT = "SELECT count(*) AS images FROM planned_images"
HEADER = (
    "existing",
    "new",
    "",
    "seconds",
    "CPU seconds",
    "new images/s",
    "share of DuckDB",
    "peak MiB",
)


def existing_ids(run: int, count: int) -> Iterator[IdArray]:
    """The ids of a run in chunks, the same every time."""
    rng = np.random.default_rng(run)
    for start in range(0, count, CHUNK):
        ids = min(CHUNK, count - start)
        yield random_ids(rng, ids)


def random_ids(rng: np.random.Generator, count: int) -> IdArray:
    """As many random ids."""
    content = rng.bytes(ID_BYTES * count)
    return np.frombuffer(content, f"S{ID_BYTES}")


def digits(ids: IdArray) -> pa.Array:
    """The ids as text."""
    places = np.arange(len(ids) + 1, dtype=np.int32)
    offsets = 2 * ID_BYTES * places
    text = ids.tobytes().hex()
    return pa.StringArray.from_buffers(
        len(ids),
        pa.py_buffer(offsets),
        pa.py_buffer(text.encode()),
    )


def write_indexes(folder: Path, existing: int) -> None:
    """Index images of a few runs as aggregation does, without reading manifests."""
    per_run = existing // RUNS
    for run in range(RUNS):
        store = open_store(str(folder / f"run-{run}"))
        with collect_image_ids(per_run) as image_ids:
            for ids in existing_ids(run, per_run):
                statuses = pa.repeat("ok", len(ids))
                add_image_ids(image_ids, pa.table({"image_id": digits(ids), "status": statuses}))
            keys = write_image_index(store, image_ids)
        create_commit(store, Head(), replace(NO_COMMIT, image_ids=keys))


def write_new(path: Path, new: int) -> None:
    """Write `new` ids in random order, half of them from earlier runs."""
    per_run = new // 2 // RUNS
    chunks: list[IdArray] = []
    for run in range(RUNS):
        chunks.extend(existing_ids(run, per_run))
    repeated_count = sum(len(chunk) for chunk in chunks)

    rng = np.random.default_rng(RUNS)
    chunks.append(random_ids(rng, new - repeated_count))
    ids = rng.permutation(np.concatenate(chunks))
    columns = {
        "image_id": digits(ids),
        "number": np.arange(new) * 10_000,
    }
    pq.write_table(pa.table(columns), path)


def find_existing(folder: Path) -> None:
    """The index step of planning."""
    scratch = folder / "scratch"
    scratch.mkdir()
    database = Database(scratch)
    database.execute(UNIQUE.format(folder / "new.parquet"))
    runs = [str(folder / f"run-{run}") for run in range(RUNS)]
    create_existing_table(database, scratch, runs)
    _write_count(folder, "kiln", database.fetch_table(LEFT))
    database.close()


def anti_join(folder: Path, memory: str | None) -> None:
    """The same by DuckDB alone."""
    with duckdb.connect(config={"temp_directory": str(folder / "spill")}) as connection:
        connection.execute("SET enable_progress_bar = false")
        if memory:
            connection.execute(f"SET memory_limit = '{memory}'")
        connection.execute(UNIQUE.format(folder / "new.parquet"))
        connection.execute(f"""CREATE VIEW planned_images AS SELECT * FROM unique_images ANTI JOIN
            read_parquet('{folder}/run-*/image-ids/*.parquet') existing
            ON unhex(unique_images.image_id) = existing.image_id""")
        _write_count(folder, "duckdb", connection.sql(LEFT).to_arrow_table())


def _write_count(folder: Path, contender: str, counts: pa.Table) -> None:
    path = folder / contender
    count = counts["images"][0].as_py()
    path.write_text(str(count))


def bench(existing: int, new: int) -> list[tuple[str, ...]]:
    """Find the new images by the index step and by DuckDB, each in its own process."""
    with scratch_folder() as folder:
        writing = measure_usage(write_indexes, folder, existing)
        measure_usage(write_new, folder / "new.parquet", new)
        joining = measure_usage(anti_join, folder, None)
        limited = _measure_limited(folder)
        finding = measure_usage(find_existing, folder)
        _require_equal_counts(folder)
        objects = len(list(folder.glob("run-*/image-ids/*")))
    print(
        f"{existing:,} ids indexed in {writing.seconds:.1f} s, "
        f"{writing.peak_mib} MiB, {objects} objects"
    )
    results = {
        "DuckDB": joining,
        f"DuckDB, {MEMORY_LIMIT}": limited,
        "index step": finding,
    }
    sizes = (f"{existing:,}", f"{new:,}")
    return [
        (*sizes, contender, *_usage_cells(new, usage, joining))
        for contender, usage in results.items()
    ]


def _measure_limited(folder: Path) -> Usage | None:
    """DuckDB with the memory that planning allows it; None where that does not suffice."""
    try:
        return measure_usage(anti_join, folder, MEMORY_LIMIT)
    except duckdb.OutOfMemoryException:
        return None


def _require_equal_counts(folder: Path) -> None:
    own_count = (folder / "kiln").read_text()
    if own_count != (folder / "duckdb").read_text():
        raise SystemExit("the index step and DuckDB differ in how many images are new")


def _usage_cells(new: int, usage: Usage | None, peer: Usage) -> tuple[str, ...]:
    if usage is None:
        return ("out of memory", "", "", "", "")
    return usage_cells(new, usage, peer)


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--existing", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--new", type=int, nargs="+", default=[1_000_000])
    options = parser.parse_args()
    print(machine())
    lines: list[tuple[str, ...]] = []
    for existing in options.existing:
        for new in options.new:
            lines.extend(bench(existing, new))
    print(table(HEADER, lines))


if __name__ == "__main__":
    main()
