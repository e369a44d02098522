"""A few prompts may stand in the job itself: the images are those of a table with them."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import imagekiln
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.prompts import PromptList
from imagekiln.steps.plan.source_files import store_prompt_list
from imagekiln.steps.plan.step import make_plan
from imagekiln.workflows.templates.workflow import job_parameter
from tests.jobs import image_rows, job, plan

TEXTS = ["a red circle", "  a blue {square}, with __marks__ "]


def test_texts_are_drawn_as_those_of_a_table(tmp_path: Path) -> None:
    table = image_rows(plan(tmp_path / "table", {"prompt": TEXTS}))
    listed = image_rows(plan(tmp_path / "list", prompts={"texts": TEXTS}))
    assert listed.equals(table)


def test_no_prompt_travels_in_a_workflow(tmp_path: Path) -> None:
    listed = job(tmp_path, prompts={"texts": TEXTS}, columns={"prompt": "Text"})
    with pytest.raises(BadInput, match="no prompt travels in a workflow"):
        job_parameter(listed)
    assert isinstance(listed.prompts, PromptList)
    stored = store_prompt_list(listed, listed.prompts)
    assert pq.read_table(str(stored.prompts))["Text"].to_pylist() == TEXTS
    assert store_prompt_list(listed, listed.prompts) == stored
    assert image_rows(make_plan(stored))["prompt"].to_pylist() == TEXTS


def test_prompts_in_place_of_files_are_explained(tmp_path: Path) -> None:
    shapes = {"id": "bundled:shapes", "dtype": "float32"}
    output = str(tmp_path / "out")
    texts = imagekiln.job(name="a", prompts=["a red circle"], output=output, model=shapes)
    with pytest.raises(Missing, match=r"no such file .* are written as `prompts: \{texts: "):
        make_plan(texts)
