"""How fast and in how much memory a job is planned, beside pyarrow copying the same rows.

python tests/bench/plan.py --rows 1_000_000 10_000_000 --inputs several-shapes

The inputs are rows of one shape; of several; and of one shape where each prompt ends in a number of
its own, so that every row has a word that no row before it had.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.job.job import Job, ModelSettings, RowDefaults, ShardSettings
from imagekiln.steps.plan.step import make_plan
from tests.bench.inputs import SCHEMA, prompt_rows, write_prompts
from tests.bench.measure import Measured, beside, machine, measured, table

SHARD_IMAGES = 5000
BATCH_ROWS = 65_536
INPUTS = ("one-shape", "several-shapes", "numbered")
HEADER = ("rows", "input", "", "seconds", "CPU seconds", "rows/s", "share of copy", "peak MiB")


def job(prompts: Path, output: Path) -> Job:
    """A job with the bundled model, whose tokenizer has to count every prompt."""
    return Job(
        name="bench",
        run_id="run",
        prompts=str(prompts),
        output=str(output),
        model=ModelSettings(id="bundled:shapes", dtype="float32"),
        defaults=RowDefaults(steps=20),
        shard=ShardSettings(images=SHARD_IMAGES),
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


def write_input(path: Path, rows: int, kind: str) -> None:
    """Write prompt rows of one of INPUTS."""
    if kind != "numbered":
        write_prompts(path, rows, kind == "several-shapes")
        return
    first = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for chunk in prompt_rows(rows, several_shapes=False):
            numbers = pa.array(range(first, first + chunk.num_rows)).cast(pa.string())
            prompts = pc.binary_join_element_wise(chunk["prompt"], numbers, " ")
            index = SCHEMA.get_field_index("prompt")
            writer.write_table(chunk.set_column(index, "prompt", prompts))
            first += chunk.num_rows


def bench(rows: int, kind: str) -> list[tuple[str, ...]]:
    """Plan `rows` rows and copy them, each in its own process."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as name:
        folder = Path(name)
        prompts = folder / "prompts.parquet"
        measured(write_input, prompts, rows, kind)
        copied = measured(copy_rows, prompts, folder / "copy.parquet")
        planned = measured(plan_rows, prompts, folder / "output")
        return [
            _line(rows, kind, "copy", copied, copied),
            _line(rows, kind, "plan", planned, copied),
        ]


def _line(rows: int, kind: str, step: str, result: Measured, copied: Measured) -> tuple[str, ...]:
    return (f"{rows:,}", kind, step, *beside(rows, result, copied))


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--inputs", choices=INPUTS, nargs="+", default=INPUTS)
    options = parser.parse_args()
    print(machine())
    lines: list[tuple[str, ...]] = []
    for rows in options.rows:
        for kind in options.inputs:
            lines.extend(bench(rows, kind))
    print(table(HEADER, lines))


if __name__ == "__main__":
    main()
