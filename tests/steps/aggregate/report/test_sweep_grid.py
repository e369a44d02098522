"""The grid of a sweep in the report: each image where its prompt and its settings are."""

import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path

from imagekiln.steps.aggregate.report.pictures import (
    MAX_CELLS,
    MAX_PROMPTS,
    MAX_VALUES,
    SweepGrid,
    build_grid,
    pick_sweep,
)
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.storage import open_store
from tests.jobs import image_rows, write
from tests.runs import fill, not_ok, settings
from tests.steps.aggregate.tables import image_table, manifest

HOSTILE = "</table><script>alert(1)</script> {{ 7 * 7 }} {a|b}"


def _job(folder: Path, sweep: Mapping[str, object]) -> Job:
    table = write(folder / "table.parquet", {"text": [HOSTILE, "a cat", "a dog"]})
    prompts = {"template": "{{ text }}", "table": table, "sweep": sweep}
    plain = settings(Path("unused"), str(folder / "out"), limits={"failed_share": 1.0})
    return validate_job({**plain, "prompts": prompts})


def test_each_image_is_where_its_prompt_and_settings_are(tmp_path: Path) -> None:
    run = make_plan(_job(tmp_path, {"seed": [1, 2], "guidance": [1, 2.5, 5], "steps": [2]}))
    planned = image_rows(run).to_pylist()
    (failing,) = (
        index
        for index, row in enumerate(planned)
        if (row["prompt"], row["seed"], row["guidance"]) == ("a cat", 2, 2.5)
    )
    fill(run, {failing: not_ok(failing)})
    aggregate(run.uri)

    page = open_store(run.uri).read(REPORT_KEY).decode()
    (table,) = re.findall(r'<table class="sweep">(.*?)</table>', page, re.DOTALL)
    assert "<script" not in page
    assert re.findall(r'<th scope="col"><bdi>(.*?)</bdi>', table) == [
        "guidance 1",
        "guidance 2.5",
        "guidance 5",
    ]
    grid = {}
    for body in table.split("<tbody>")[1:]:
        prompt, *lines = re.findall(r'<bdi dir="auto">(.*?)</bdi></th>(.*?)</tr>', body, re.DOTALL)
        for seed, cells in lines:
            grid[unescape(prompt[0]), seed] = re.findall(r"<td>(.*?)</td>", cells, re.DOTALL)
    by_id = {row["image_id"]: row for row in planned}
    assert len(grid) == 6
    for (prompt_text, seed), cells in grid.items():
        for guidance, cell in zip([1, 2.5, 5], cells, strict=True):
            if (prompt_text, seed, guidance) == ("a cat", "seed 2", 2.5):
                assert cell == '<span class="quiet">failed</span>'
                continue
            (image_id,) = re.findall(r"images/(\w+)\.png", cell)
            row = by_id[image_id]
            place = (row["prompt"], f"seed {row['seed']}", row["guidance"])
            assert place == (prompt_text, seed, guidance)


def _grid(job: Job, rows: Sequence[int]) -> SweepGrid:
    prompts = [f"prompt {row // 400}" for row in rows]
    images = manifest(len(rows), input_row=rows, prompt=prompts)
    with image_table(job, images) as table:
        numbers = pick_sweep(table, job)
    grid = build_grid(job, images.take(numbers).to_pylist(), 400 * 500)
    assert grid is not None
    return grid


def test_a_large_sweep_is_cut_to_its_first_prompts_and_values_and_says_so(tmp_path: Path) -> None:
    values = {"seed": list(range(20)), "steps": list(range(1, 21))}
    # The first seven prompts have no images in the run.
    grid = _grid(_job(tmp_path, values), range(400 * 7, 400 * 500))
    assert len(grid.columns) == len(grid.lines) == MAX_VALUES
    assert [prompt.prompt for prompt in grid.prompts] == ["prompt 7"]
    assert len(grid.images) <= MAX_CELLS
    assert grid.note == "1 of 500 prompts, 144 of 400 images of each."
    small = _grid(_job(tmp_path, {"steps": [1, 2]}), range(2 * MAX_PROMPTS + 10))
    assert len(small.prompts) == MAX_PROMPTS
