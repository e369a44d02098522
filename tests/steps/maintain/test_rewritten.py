"""Rewritten prompts after a run: what a takedown finds, and the columns of a run without rows."""

from hashlib import sha256
from pathlib import Path

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.rewrite.step import prompt_rewriter
from tests.faults import manifests
from tests.language_models import language_model
from tests.runs import fill, job, write_prompts

TEXTS = ("red cat", "red dog", "blue cat", "blue dog")


def _job(folder: Path, run_id: str) -> Job:
    """A job of prompts to rewrite."""
    settings = {
        "model": {"id": str(language_model("gpt2")), "dtype": "float32"},
        "instruction": "Describe {prompt} :",
        "seed": 4,
    }
    rows = [{"prompt": text, "id": text} for text in TEXTS]
    prompts = write_prompts(folder / f"{run_id}.parquet", rows)
    return job(prompts, str(folder / "out"), run_id=run_id, rewrite=settings)


def _run(folder: Path, run_id: str) -> PlanResult:
    """A finished run of rewritten prompts."""
    result = make_plan(_job(folder, run_id), rewriter=prompt_rewriter())
    fill(result)
    aggregate(result.uri)
    return result


def test_takedown_finds_images_by_the_prompt_that_was_rewritten(tmp_path: Path) -> None:
    uri = _run(tmp_path, "night").uri
    rows = manifests(uri)
    (row,) = (row for row in rows if row["prompt_original"] == "red dog")
    prompt = str(row["prompt"])
    assert "red dog" not in prompt
    whole = sha256(b"red dog").hexdigest()
    drawn = sha256(prompt.encode()).hexdigest()
    assert imagekiln.forget(uri, prompt_contains=["RED DO"]).images == 1
    assert imagekiln.forget(uri, prompt_sha256=[whole]).images == 1
    same = [other for other in rows if other["prompt"] == row["prompt"]]
    assert imagekiln.forget(uri, prompt_sha256=[drawn]).images == len(same)
    imagekiln.forget(uri, prompt_contains=["red dog"], remove=True)
    rows = manifests(uri)
    gone = [row["prompt_original"] for row in rows if row["status"] == "forgotten"]
    assert gone == ["red dog"]
    imagekiln.verify(uri)


def test_night_with_nothing_new_has_the_columns_of_rewritten_prompts(tmp_path: Path) -> None:
    _run(tmp_path, "first")
    job_again = _job(tmp_path, "second").model_copy(update={"skip_existing": True})
    quiet = make_plan(job_again, rewriter=prompt_rewriter())
    assert not quiet.plan.shards
    aggregate(quiet.uri)
    columns = ["prompt", "prompt_original", "prompt_rewrite"]
    assert imagekiln.dataset(quiet.uri, columns=columns).count_rows() == 0
    assert imagekiln.dataset(str(tmp_path / "out"), columns=columns).count_rows() == len(TEXTS)
