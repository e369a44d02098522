"""The data that ships."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from imagekiln.steps.job.reader import read_job
from imagekiln.steps.storage.uri import resolve_path


@pytest.mark.parametrize("name", ["shapes/model_index.json", "prompts.parquet", "demo.yaml"])
def test_what_a_job_may_name_ships(name: str) -> None:
    assert Path(resolve_path(f"bundled:{name}")).is_file()


@pytest.mark.parametrize(
    "name", ["/data/model", "org/model", "s3://bucket/prompts.parquet", "not-bundled:shapes"]
)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert resolve_path(name) == name


def test_bundled_prompts_fit_the_bundled_job() -> None:
    job = read_job("bundled:demo.yaml", environment={})
    columns = pq.read_schema(resolve_path(job.prompt_patterns[0])).names
    assert {"id", "prompt", *job.carry} <= set(columns)
