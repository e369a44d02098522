"""The data that ships."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from imagekiln.steps import bundled
from imagekiln.steps.jobfile import read_job


@pytest.mark.parametrize("name", ["shapes/model_index.json", "prompts.parquet", "demo.yaml"])
def test_what_a_job_may_name_ships(name: str) -> None:
    assert Path(bundled.resolve_path(f"bundled:{name}")).is_file()


@pytest.mark.parametrize("name", ["/data/model", "org/model", "s3://bucket/prompts.parquet", "not-bundled:shapes"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert bundled.resolve_path(name) == name


def test_bundled_prompts_fit_the_bundled_job() -> None:
    job = read_job("bundled:demo.yaml", environment={})
    columns = pq.read_schema(bundled.resolve_path(job.prompt_patterns[0])).names
    assert {"id", "prompt", *job.carry} <= set(columns)
