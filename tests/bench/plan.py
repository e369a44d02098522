"""How fast and in how much memory a job is planned, beside pyarrow copying the same rows.

python tests/bench/plan.py --rows 1_000_000 10_000_000 --shapes several
"""

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.job.job import Job, ModelSettings, RowDefaults
from imagekiln.steps.job.job import ShardSettings as ShardSize
from imagekiln.steps.plan.step import make_plan
from tests.bench.inputs import write_prompts
from tests.bench.measure import Measured, beside, machine, measured, table

SHARD_IMAGES = 5000
BATCH_ROWS = 65_536
HEADER = ("rows", "shapes", "", "seconds", "CPU seconds", "rows/s", "share of copy", "peak MiB")


def job(prompts: Path, output: Path) -> Job:
    """A job with the bundled model, whose tokeniser has to count every prompt."""
    return Job(
        name="bench",
        run_id="run",
        prompts=str(prompts),
        output=str(output),
        model=ModelSettings(id="bundled:shapes", dtype="float32"),
        defaults=RowDefaults(steps=20),
        shard=ShardSize(images=SHARD_IMAGES),
    )


def plan_rows(prompts: Path, output: Path) -> None:
    """The whole step: from the input's bytes to plan.json."""
    make_plan(job(prompts, output))


def copy_rows(prompts: Path, copy: Path) -> None:
    """What pyarrow needs to read the same columns, and to write them as we do."""
    with pq.ParquetFile(prompts, page_checksum_verification=True) as source:
        options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False}
        with pq.ParquetWriter(copy, source.schema_arrow, **options) as writer:
            for batch in source.iter_batches(BATCH_ROWS):
                writer.write_batch(batch)


def bench(rows: int, shapes: str) -> list[tuple[str, ...]]:
    """Plan so many rows, and copy them, each in its own process."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as name:
        folder = Path(name)
        prompts = folder / "prompts.parquet"
        measured(write_prompts, prompts, rows, shapes == "several")
        copied = measured(copy_rows, prompts, folder / "copy.parquet")
        planned = measured(plan_rows, prompts, folder / "output")
        return [
            _line(rows, shapes, "copy", copied, copied),
            _line(rows, shapes, "plan", planned, copied),
        ]


def _line(rows: int, shapes: str, what: str, took: Measured, copied: Measured) -> tuple[str, ...]:
    return (
        f"{rows:,}",
        shapes,
        what,
        *beside(rows, took, copied),
    )


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument(
        "--shapes", choices=["one", "several"], nargs="+", default=["one", "several"]
    )
    chosen = parser.parse_args()
    print(machine())
    lines = [
        line for rows in chosen.rows for shapes in chosen.shapes for line in bench(rows, shapes)
    ]
    print(table(HEADER, lines))


if __name__ == "__main__":
    main()
