"""Time and memory of finding the images that earlier runs made, beside DuckDB's anti-join.

Example: python tests/bench/index.py --existing 10_000_000 100_000_000 --new 1_000_000

Half of the new images exist in earlier runs. DuckDB reads the same index files: once without a
memory limit, once with the limit that planning sets.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.plan.existing_images import create_existing_table
from imagekiln.steps.runs.image_id_index import IdArray, ImageIndexWriter
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import MEMORY_LIMIT, Database
from tests.bench.measure import Measured, beside, machine, measured, table

RUNS = 5
CHUNK = 250_000  # ids
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
        yield np.frombuffer(rng.bytes(16 * min(CHUNK, count - start)), "S16")


def digits(ids: IdArray) -> pa.Array:
    """The ids as text."""
    offsets = np.arange(0, 32 * len(ids) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(ids), pa.py_buffer(offsets), pa.py_buffer(ids.tobytes().hex().encode())
    )


def write_indexes(folder: Path, existing: int) -> None:
    """Index images of a few runs as aggregation does, without reading manifests."""
    for run in range(RUNS):
        with ImageIndexWriter(open_store(str(folder / f"run-{run}")), existing // RUNS) as index:
            for ids in existing_ids(run, existing // RUNS):
                index.add(pa.table({"image_id": digits(ids), "status": pa.repeat("ok", len(ids))}))
            index.write()


def write_new(path: Path, new: int) -> None:
    """Write `new` ids in random order, half of them from earlier runs."""
    per_run = new // 2 // RUNS
    repeated = np.concatenate(
        [chunk for run in range(RUNS) for chunk in existing_ids(run, per_run)]
    )
    rng = np.random.default_rng(RUNS)
    fresh = np.frombuffer(rng.bytes(16 * (new - len(repeated))), "S16")
    mixed = rng.permutation(np.concatenate([repeated, fresh]))
    pq.write_table(pa.table({"image_id": digits(mixed), "number": np.arange(new) * 10_000}), path)


def find_existing(folder: Path) -> None:
    """The index step of planning."""
    scratch = folder / "scratch"
    scratch.mkdir()
    database = Database(scratch)
    database.execute(UNIQUE.format(folder / "new.parquet"))
    create_existing_table(database, scratch, [str(folder / f"run-{run}") for run in range(RUNS)])
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


def _write_count(folder: Path, who: str, left: pa.Table) -> None:
    (folder / who).write_text(str(left["images"].to_pylist()))


def bench(existing: int, new: int) -> list[tuple[str, ...]]:
    """Find the new images by the index step and by DuckDB, each in its own process."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as name:
        folder = Path(name)
        written = measured(write_indexes, folder, existing)
        measured(write_new, folder / "new.parquet", new)
        joined = measured(anti_join, folder, None)
        lines = [_line(existing, new, "DuckDB", joined, joined)]
        try:
            lines.append(
                _line(
                    existing,
                    new,
                    f"DuckDB, {MEMORY_LIMIT}",
                    measured(anti_join, folder, MEMORY_LIMIT),
                    joined,
                )
            )
        except duckdb.OutOfMemoryException:
            lines.append(
                (f"{existing:,}", f"{new:,}", f"DuckDB, {MEMORY_LIMIT}", "out of memory", *[""] * 4)
            )
        lines.append(_line(existing, new, "index step", measured(find_existing, folder), joined))
        if (folder / "kiln").read_text() != (folder / "duckdb").read_text():
            raise SystemExit("the two differ in what is left to make")
        pieces = len(list(folder.glob("run-*/image-ids/*")))
        print(
            f"{existing:,} ids indexed in {written.seconds:.1f} s, "
            f"{written.peak_mib} MiB, {pieces} objects"
        )
        return lines


def _line(existing: int, new: int, what: str, took: Measured, joined: Measured) -> tuple[str, ...]:
    return (f"{existing:,}", f"{new:,}", what, *beside(new, took, joined))


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--existing", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--new", type=int, nargs="+", default=[1_000_000])
    options = parser.parse_args()
    print(machine())
    print(
        table(
            HEADER,
            [
                line
                for existing in options.existing
                for new in options.new
                for line in bench(existing, new)
            ],
        )
    )


if __name__ == "__main__":
    main()
