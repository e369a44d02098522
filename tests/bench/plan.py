"""How fast and in how much memory a job is planned, beside pyarrow copying the same rows.

python tests/bench/plan.py --rows 1_000_000 10_000_000 --inputs several-shapes

The inputs are rows of one shape; of several; of one shape where each prompt ends in a number of its
own, so that every row has a word that no row before it had; and prompts as people write them, from
short to long, in many languages, with names, numbers, addresses and emoji that differ by row.
"""

import argparse
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.job.execution import ShardSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.rows import RowDefaults
from imagekiln.steps.plan.step import make_plan
from tests.bench.inputs import SCHEMA, prompt_rows, write_prompts
from tests.bench.measure import Usage, machine, measure_usage, scratch_folder, table, usage_cells
from tests.texts import chance

SHARD_IMAGES = 5000
BATCH_ROWS = 65_536
COPY_OPTIONS = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False}
INPUTS = ("one-shape", "several-shapes", "numbered", "people")
# One prompt a line; a line break in it is written as \n.
PEOPLE = Path(__file__).with_name("people.txt")
PEOPLE_ROWS = 100_000  # in a row group
NAME_SYLLABLES = ("ka", "ri", "mo", "len", "ta", "vi", "sol", "an", "be", "dur", "is", "ne")
EMOJI = (
    "\N{SPARKLES}",
    "\N{CAT FACE}",
    "\N{PERSON WITH FOLDED HANDS}",
    "\N{WATER WAVE}",
    "\N{FIRE}",
)
PEOPLE_SCHEMA = pa.schema([("prompt", pa.string())])
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
    source = pq.ParquetFile(prompts, page_checksum_verification=True)
    writer = pq.ParquetWriter(copy, source.schema_arrow, **COPY_OPTIONS)
    with source, writer:
        for batch in source.iter_batches(BATCH_ROWS):
            writer.write_batch(batch)


def write_input(path: Path, rows: int, kind: str) -> None:
    """Write prompt rows of one of INPUTS."""
    if kind == "numbered":
        write_numbered(path, rows)
    elif kind == "people":
        write_people(path, rows)
    else:
        write_prompts(path, rows, kind == "several-shapes")


def write_numbered(path: Path, rows: int) -> None:
    """Write rows of one shape, each prompt with the row's number at its end."""
    first = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for chunk in prompt_rows(rows, several_shapes=False):
            end = first + chunk.num_rows
            numbers = pa.array(range(first, end)).cast(pa.string())
            prompts = pc.binary_join_element_wise(chunk["prompt"], numbers, " ")
            index = SCHEMA.get_field_index("prompt")
            writer.write_table(chunk.set_column(index, "prompt", prompts))
            first = end


def write_people(path: Path, rows: int) -> None:
    """Write the prompts of PEOPLE over and over in a random order, with other names in each row."""
    rng = chance(7)
    texts = PEOPLE.read_text(encoding="utf-8").splitlines()
    prompts = [text.replace("\\n", "\n") for text in texts]
    with pq.ParquetWriter(path, PEOPLE_SCHEMA, compression="zstd") as writer:
        for first in range(0, rows, PEOPLE_ROWS):
            count = min(PEOPLE_ROWS, rows - first)
            chosen = rng.choices(prompts, k=count)
            filled = [fill_placeholders(prompt, rng) for prompt in chosen]
            writer.write_table(pa.table([filled], schema=PEOPLE_SCHEMA))


def fill_placeholders(prompt: str, rng: random.Random) -> str:
    """The prompt with a name, number, address and emoji; one without a place for any gets a number.

    So that few rows are equal.
    """
    if "{" not in prompt:
        prompt += ", {number}"
    number = str(rng.randrange(1_000_000))
    syllables = rng.choices(NAME_SYLLABLES, k=3)
    name = "".join(syllables).capitalize()
    url = f"https://example.com/{name}/{number}.jpg"
    prompt = prompt.replace("{name}", name)
    prompt = prompt.replace("{number}", number)
    prompt = prompt.replace("{url}", url)
    return prompt.replace("{emoji}", rng.choice(EMOJI))


def bench(rows: int, kind: str) -> list[tuple[str, ...]]:
    """Plan `rows` rows and copy them, each in its own process."""
    with scratch_folder() as folder:
        prompts = folder / "prompts.parquet"
        measure_usage(write_input, prompts, rows, kind)
        copied = measure_usage(copy_rows, prompts, folder / "copy.parquet")
        planned = measure_usage(plan_rows, prompts, folder / "output")
        return [
            _line(rows, kind, "copy", copied, copied),
            _line(rows, kind, "plan", planned, copied),
        ]


def _line(rows: int, kind: str, step: str, result: Usage, copied: Usage) -> tuple[str, ...]:
    cells = usage_cells(rows, result, copied)
    return (f"{rows:,}", kind, step, *cells)


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
