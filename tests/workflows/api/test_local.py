"""Jobs and runs from Python: each function takes a path or a job, and acts as its command does."""

import json
import traceback
from functools import partial
from pathlib import Path

import pytest
import yaml

import imagekiln
from imagekiln.results import RunResult
from imagekiln.steps.generate import tune
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.storage import open_store
from tests.faults import manifests
from tests.runs import PROMPTS, fill, finished, not_ok, planned, settings, write_prompts


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job file for six images in two shards."""
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS[:6])
    values = settings(prompts, str(tmp_path / "out"), shard={"images": 4})
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of 20 images."""
    return Path(finished(tmp_path / "finished").uri)


def test_a_job_runs_from_its_file_and_again_has_nothing_to_do(job_file: Path) -> None:
    result = imagekiln.run(job_file)
    assert (result.summary.ok, result.before) == (6, False)
    assert open_store(result.uri).exists(SUCCESS_KEY)
    again = imagekiln.run(imagekiln.read_job(job_file))
    assert (again.uri, again.before) == (result.uri, True)


def test_progress_is_shown_where_it_is_asked_for(
    job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imagekiln.run(job_file, progress=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1]["done"] == 6


def test_steps_one_by_one_make_the_dataset(job_file: Path) -> None:
    assert imagekiln.estimate(job_file).shards == 2
    run = Path(imagekiln.plan(job_file).uri)
    for shard in range(2):
        assert imagekiln.generate(run, shard) is not None
        assert imagekiln.generate(run, shard) is None
    assert imagekiln.aggregate(run).ok == 6
    assert imagekiln.verify(run).ok == 6


def test_date_names_the_run_and_fills_the_prompts(job_file: Path) -> None:
    change = f"prompts={job_file.parent}/{{date}}/*.parquet"
    job = imagekiln.read_job(job_file, [change], date="2026-11-20T23:30:00Z", timezone="Asia/Tokyo")
    assert job.run_id == "tiny-20261120T233000Z"
    assert job.prompt_patterns == (f"{job_file.parent}/2026-11-21/*.parquet",)


def test_job_that_needs_a_date_says_so(job_file: Path) -> None:
    job = imagekiln.read_job(job_file, [f"prompts={job_file.parent}/{{date}}/*.parquet"])
    for function in (imagekiln.run, imagekiln.plan, imagekiln.estimate):
        with pytest.raises(imagekiln.BadInput, match=r"needs a date.*--date .*date=\"2026"):
            function(job)


def test_date_of_a_call_fills_the_prompts(job_file: Path) -> None:
    job = imagekiln.read_job(job_file)
    dated = Path(job.prompt_patterns[0]).with_name("prompts-2026-11-21.parquet")
    dated.write_bytes(Path(job.prompt_patterns[0]).read_bytes())
    job = job.model_copy(update={"prompts": str(dated).replace("2026-11-21", "{date}")})
    assert imagekiln.estimate(job, date="2026-11-21").images == imagekiln.estimate(job_file).images
    result = imagekiln.plan(job, date="2026-11-21")
    assert result.plan.job.run_id == "tiny-20261121T000000Z"


def test_failure_comes_without_the_errors_behind_it(job_file: Path) -> None:
    with pytest.raises(imagekiln.Missing) as caught:
        imagekiln.run(job_file.with_name("absent.yaml"))
    lines = traceback.format_exception(caught.value)
    assert sum(line.startswith("Traceback") for line in lines) == 1


def test_result_is_short_at_a_prompt(tmp_path: Path) -> None:
    rows = [{"prompt": "a ring", "id": f"row-{place}"} for place in range(8)]
    plan = planned(tmp_path, str(tmp_path / "out"), rows)
    fill(plan, {3: not_ok(3)})
    summary = imagekiln.aggregate(plan.uri, failed_share=0.5)
    result = RunResult(plan.uri, summary, before=False)
    assert repr(result) == f"RunResult(uri={plan.uri!r}, images=8, ok=7)"


def test_mistake_in_the_job_is_a_sentence(job_file: Path) -> None:
    with pytest.raises(imagekiln.BadInput, match=r'model\.dtype is "bf16"; it should be'):
        imagekiln.read_job(job_file, ["model.dtype=bf16"])
    with pytest.raises(imagekiln.Missing, match="no such file"):
        imagekiln.run(job_file.with_name("absent.yaml"))


def test_failed_images_are_accepted_or_retried(tmp_path: Path) -> None:
    plan = planned(tmp_path, str(tmp_path / "out"))
    fill(plan, {3: not_ok(3)})
    run = Path(plan.uri)
    with pytest.raises(imagekiln.Incomplete):
        imagekiln.aggregate(run)
    assert imagekiln.aggregate(run, failed_share=0.1).ok == 19
    result = imagekiln.retry(run)
    assert (result.retry, result.images, result.summary.ok) == (2, 1, 20)


def test_reproduced_image_is_equal_and_written(run_folder: Path, tmp_path: Path) -> None:
    image_id = str(manifests(str(run_folder))[0]["image_id"])
    result = imagekiln.reproduce(run_folder, image_id, tmp_path / "again.png")
    assert result.equal == "bytes"
    assert (tmp_path / "again.png").is_file()


def test_leftovers_are_listed_and_removed_only_on_request(tmp_path: Path) -> None:
    output = tmp_path / "out"
    run = Path(planned(tmp_path, str(output)).uri)
    assert imagekiln.gc(output).found == ()
    assert len(imagekiln.gc(output, older_than=0).found) == 1
    assert [*run.glob("shards/*")]
    assert imagekiln.gc(output, older_than=0, remove=True).removed
    assert not [*run.glob("shards/*")]


def test_tuning_is_written_to_the_file(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "tune", partial(tune.tune, max_batch=1))
    lines: list[str] = []
    file = tmp_path / "tuning.yaml"
    result = imagekiln.tune(job_file, file, [(64, 32)], report=lines.append)
    assert [(entry.width, entry.height) for entry in result.entries] == [(64, 32)]
    assert file.is_file()
    assert lines
