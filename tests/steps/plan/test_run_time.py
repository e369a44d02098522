"""How long a job takes: by its plan, and before it by the rows of its files."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.run_time import RunTime, estimate_by_rows
from tests.jobs import job, plan, write
from tests.tuned import entry, tuned_file

ROWS = {"prompt": [f"p{number}" for number in range(36)]}
MEASURED: dict[str, object] = {"shard": {"images": 8, "seconds_per_image": 100}}


def test_time_is_shared_by_gpus_that_have_a_shard() -> None:
    time = RunTime(gpu_hours=12.0, source="measured", shards=4)
    assert [time.hours_on(gpus) for gpus in (1, 3, 4, 16)] == [12.0, 4.0, 3.0, 3.0]
    assert time.describe(16) == "About 3 h 0 min on 4 GPUs at once (12 GPU-hours, measured)."


def test_time_on_one_gpu_stands_beside_that_on_a_cluster() -> None:
    assert RunTime(12.0, "measured", shards=4).describe_both(16) == (
        "About 12 h 0 min on 1 GPU, about 3 h 0 min on the 4 that a cluster gives at once "
        "(12 GPU-hours, measured)."
    )
    one = RunTime(12.0, "measured", shards=1)
    assert (
        one.describe_both(16)
        == one.describe(1)
        == ("About 12 h 0 min on 1 GPU (12 GPU-hours, measured).")
    )


def test_several_days_are_said_in_days() -> None:
    assert RunTime(9368.0, "measured").describe(16).startswith("About 24.4 days on 16 GPUs")


def test_plan_and_estimate_and_rows_agree_where_rows_have_the_defaults(tmp_path: Path) -> None:
    planned = plan(tmp_path, ROWS, **MEASURED)
    estimated = estimate(job(tmp_path, **MEASURED))
    by_rows = estimate_by_rows(job(tmp_path, **MEASURED))
    assert planned.time is not None
    assert by_rows is not None
    assert planned.time.gpu_hours == estimated.gpu_hours == by_rows.gpu_hours == pytest.approx(1.0)
    assert by_rows.has_default_work
    assert estimated.gpus == 5  # one for each shard
    assert estimated.hours == pytest.approx(0.2)


def test_plan_that_existed_is_not_estimated_again(tmp_path: Path) -> None:
    plan(tmp_path, ROWS, **MEASURED)
    assert plan(tmp_path, **MEASURED).time is None


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        (ROWS | {"steps": [1] * 36}, {}),
        (ROWS | {"n": [1] * 36}, {"columns": {"images": "n"}}),
        (ROWS, {"skip_existing": True}),
    ],
)
def test_rows_with_settings_of_their_own_may_take_less(
    tmp_path: Path, columns: dict[str, object], settings: dict[str, object]
) -> None:
    time = estimate_by_rows(job(tmp_path, columns, **settings, **MEASURED))
    assert time is not None
    assert not time.has_default_work


def test_tuning_file_says_where_it_was_measured(tmp_path: Path) -> None:
    file = tuned_file(tmp_path, entry(), entry(gpu="slow", seconds_per_image=5.0))
    time = estimate_by_rows(job(tmp_path, ROWS, batch={"tuning": file}))
    assert time is not None
    assert time.source == "measured by `imagekiln tune` on a GPU, 2026-11-22"
    assert time.gpu_hours == pytest.approx(36 * 0.5 / 3600)


def test_model_of_the_table_is_computed_without_the_model(tmp_path: Path) -> None:
    model = {"id": "stabilityai/stable-diffusion-xl-base-1.0", "revision": "a" * 40}
    time = estimate_by_rows(job(tmp_path, ROWS, model=model))
    assert time is not None
    assert not time.is_measured
    assert 0.5 < time.gpu_hours * 3600 / 36 < 5


def test_nothing_is_read_where_no_figure_is_known() -> None:
    values = {"name": "a", "prompts": "s3://none/a.parquet", "output": "o"}
    assert estimate_by_rows(validate_job(values | {"model": {"id": "bundled:shapes"}})) is None


def test_rows_of_every_format_are_counted_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = pa.table({"prompt": ["a", "b, c"]})
    (tmp_path / "p.csv").write_text('prompt,steps\n"a\nb",1\nc,2\n')
    (tmp_path / "p.tsv").write_text("prompt\na, b\nc\n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    (tmp_path / "empty.csv").touch()
    feather.write_feather(prompts, tmp_path / "p.arrow")
    feather.write_feather(prompts, tmp_path / "misnamed.parquet")
    write(tmp_path / "misnamed.csv", prompts)
    write(tmp_path / "p.parquet", prompts)
    everything = job(tmp_path, prompts=str(tmp_path), **MEASURED)

    time = estimate_by_rows(everything)
    assert time is not None
    assert time.images == 2 * 7
    assert not time.has_default_work  # by the column of the CSV file

    monkeypatch.setattr("imagekiln.steps.plan.row_count.MAX_READ_BYTES", 100)
    with pytest.raises(BadInput, match=r"read up to 100 bytes in all .* `imagekiln estimate JOB`"):
        estimate_by_rows(everything)


def test_files_that_cannot_be_counted_are_named(tmp_path: Path) -> None:
    measured = job(tmp_path, **MEASURED)
    with pytest.raises(Missing, match=r"prompts\.parquet: no such file"):
        estimate_by_rows(measured)
    (tmp_path / "prompts.parquet").write_text("prompt\na\n")
    with pytest.raises(BadInput, match=r"prompts\.parquet: is text, not Parquet\. End its name in"):
        estimate_by_rows(measured)
