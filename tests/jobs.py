"""Jobs on prompts written for a test, planned, and the image rows that came of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import rejected_key
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store

SHAPES = {"id": "bundled:shapes", "dtype": "float32"}
Columns: TypeAlias = Mapping[str, object] | pa.Table


def write(path: Path, columns: Columns, **options: object) -> str:
    """Write a Parquet file and return its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        columns if isinstance(columns, pa.Table) else pa.table(dict(columns)), path, **options
    )
    return str(path)


def job(folder: Path, columns: Columns | None = None, /, **settings: object) -> Job:
    """A job on these columns with the bundled model, both input and output in `folder`."""
    values = {
        "name": "test",
        "prompts": str(folder / "prompts.parquet"),
        "output": str(folder / "out"),
    }
    if columns is not None:
        write(folder / "prompts.parquet", columns)
    return validate_job({**values, "model": SHAPES, **settings})


def plan(folder: Path, columns: Columns | None = None, /, **settings: object) -> PlanResult:
    """Plan such a job."""
    return make_plan(job(folder, columns, **settings))


def image_rows(planned: PlanResult) -> pa.Table:
    """Every image row of a run, in the order in which they are made."""
    store = open_store(planned.uri)
    return pa.concat_tables(
        [read_shard_rows(store, planned.plan, number) for number in range(len(planned.plan.shards))]
    )


def rejected(planned: PlanResult) -> list[dict[str, object]]:
    """The rows that were refused."""
    key = rejected_key(planned.plan.rejected)
    rows: list[dict[str, object]] = read_table(open_store(planned.uri), key).to_pylist()
    return rows


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its name there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
