"""Rewritten prompts after a run: what may go, and what a takedown finds."""

import os
import shutil
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.rewrite.step import prompt_rewriter, rewrite
from tests.faults import manifests
from tests.jobs import files
from tests.language_models import language_model
from tests.runs import fill, job, write_prompts

DAY = 86_400
TEXTS = ("red cat", "red dog", "blue cat", "blue dog")


def _job(folder: Path, run_id: str, seed: int = 4, texts: Sequence[str] = TEXTS) -> Job:
    """A job of prompts to rewrite, by other settings with another `seed`."""
    settings = {
        "model": {"id": str(language_model("gpt2")), "dtype": "float32"},
        "instruction": "Describe {prompt} :",
        "seed": seed,
    }
    rows = [{"prompt": text, "id": text} for text in texts]
    prompts = write_prompts(folder / f"{run_id}.parquet", rows)
    return job(prompts, str(folder / "out"), run_id=run_id, rewrite=settings)


def _run(folder: Path, run_id: str, seed: int = 4) -> PlanResult:
    """A finished run of rewritten prompts."""
    result = make_plan(_job(folder, run_id, seed), rewriter=prompt_rewriter())
    fill(result)
    aggregate(result.uri)
    return result


def _age(folder: Path, days: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - days * DAY,) * 2)


def _folders(output: Path) -> set[str]:
    return {path.name for path in (output / "_rewritten").iterdir() if any(path.rglob("*.*"))}


def test_rewritten_prompts_go_once_no_plan_names_them(tmp_path: Path) -> None:
    output = tmp_path / "out"
    first = _run(tmp_path, "first")
    second = _run(tmp_path, "second", seed=5)
    assert second.plan.rewrite is not None
    (output / "_rewritten" / "notes").mkdir()
    (output / "_rewritten" / "notes" / "mine.txt").write_text("mine")
    _age(output, 10)
    assert gc(str(output)).found == ()

    shutil.rmtree(first.uri)
    before = files(output)
    assert gc(str(output), 30).found == ()
    (garbage,) = gc(str(output)).found
    assert first.plan.rewrite is not None
    assert garbage.run == f"{output}/{first.plan.rewrite.folder}"
    assert (garbage.reason, garbage.objects) == ("unused", 3)
    assert files(output) == before
    assert gc(str(output), remove=True).removed
    gone = f"{first.plan.rewrite.folder}/"
    assert files(output) == {name: before[name] for name in before if not name.startswith(gone)}
    assert _folders(output) == {second.plan.rewrite.folder.rpartition("/")[2], "notes"}


def test_prompts_that_are_being_rewritten_stay(tmp_path: Path) -> None:
    _run(tmp_path, "first")
    job_to_come = _job(tmp_path, "second", seed=5)
    folder = Path(rewrite(job_to_come).uri)
    _age(tmp_path / "out", 10)
    (text,) = folder.glob("texts/*")
    os.utime(text)
    assert gc(str(tmp_path / "out"), remove=True).found == ()
    assert make_plan(job_to_come).plan.counts.images == len(TEXTS)


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
    assert {*columns} <= {*pq.read_schema(f"{quiet.uri}/empty.parquet").names}
    assert imagekiln.dataset(str(tmp_path / "out"), columns=columns).count_rows() == len(TEXTS)
