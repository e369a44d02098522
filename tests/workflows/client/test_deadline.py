"""A job that cannot end before its workflow is stopped is not submitted."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.client.deadline import forecast
from imagekiln.workflows.client.schedules import create
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from tests.jobs import job as planned_job
from tests.jobs import write
from tests.workflows.client.postcards import postcards
from tests.workflows.memory import Memory

GPU = load_profile("gpu")
HOURS = 3600
COLUMNS: dict[str, object] = {"prompt": [f"p{number}" for number in range(100)]}
SDXL = {"id": "stabilityai/stable-diffusion-xl-base-1.0", "revision": "a" * 40}


def _job(bucket: str, folder: Path, hours: float, /, **columns: object) -> Job:
    """A job of 100 images in a bucket, each of which takes so many hours."""
    local = write(folder / "p.parquet", COLUMNS | columns)
    open_store(bucket).create("p.parquet", Path(local).read_bytes())
    return postcards(prompts=f"{bucket}/*.parquet", shard={"seconds_per_image": hours * HOURS})


def test_submitting_reports_the_time_at_the_job_s_parallelism(
    argo: Memory, s3_bucket: str, tmp_path: Path
) -> None:
    reported: list[str] = []
    submit(_job(s3_bucket, tmp_path, 0.8), argo=argo, report=reported.append)
    assert reported == [
        "About 5 h 0 min on 16 GPUs at once (80 GPU-hours, by the job's shard.seconds_per_image)."
    ]


def test_submitting_reports_that_the_input_of_a_planned_run_has_changed(
    argo: Memory, s3_bucket: str, tmp_path: Path
) -> None:
    uris = {"prompts": f"{s3_bucket}/p.parquet", "output": f"{s3_bucket}/out"}
    night = planned_job(tmp_path, run_id="night", **uris)
    reported: list[str] = []
    for prompts in (["a"], ["a", "b"]):
        file = Path(write(tmp_path / "p.parquet", {"prompt": prompts}))
        open_store(s3_bucket).replace("p.parquet", file.read_bytes())
        make_plan(night)
    submit(night, argo=argo, report=reported.append)
    assert "has changed (1 row then, 2 now) since this run was planned." in reported[-1]


@pytest.mark.parametrize(("columns", "need"), [({}, "0.272"), ({"width": [64] * 100}, "0.519")])
def test_submitting_reports_that_planning_may_run_out_of_disk(
    columns: dict[str, object], need: str, argo: Memory, s3_bucket: str, tmp_path: Path
) -> None:
    profile = tmp_path / "small.yaml"
    profile.write_text("{description: a small disk, steps: {disk: 0.25}}")
    values = _job(s3_bucket, tmp_path, 1e-7, **columns).model_dump() | {
        "defaults": {"images_per_prompt": 10_000},
        "cluster": {"profile": str(profile)},
    }
    reported: list[str] = []
    submit(Job.model_validate(values), argo=argo, report=reported.append)
    assert reported[0].endswith(
        f" Planning 1,000,000 images takes up to {need} GiB of disk, and profile small gives it "
        "0.25: set `steps: {disk: 1}` in a profile of your own."
    )


def test_job_that_cannot_end_in_time_is_refused_with_the_numbers_to_set(
    argo: Memory, s3_bucket: str, tmp_path: Path
) -> None:
    late = _job(s3_bucket, tmp_path, 48)
    numbers = r"about 12\.5 days .* after 7 days\. Set `days: 14` .* `cluster\.parallelism: 30`"
    with pytest.raises(BadInput, match=f"(?i){numbers}"):
        submit(late, argo=argo)
    with pytest.raises(BadInput, match=f"(?i){numbers}"):
        create(late, "30 1 * * *", argo=argo)
    assert not argo.objects


BUDGET = {"budget": {"cost": 100}, "price_per_hour": 2.0}


def test_job_that_exceeds_its_budget_is_refused_before_anything_is_created(
    argo: Memory, s3_bucket: str, tmp_path: Path
) -> None:
    parquet = _job(s3_bucket, tmp_path, 0.8).model_dump() | BUDGET
    open_store(s3_bucket).create("p.csv", b"prompt\n" + b"a circle\n" * 100)
    for prompts in ("p.parquet", "p.csv"):
        values = parquet | {"prompts": f"{s3_bucket}/{prompts}"}
        with pytest.raises(BadInput, match=r"cost 160\.00, where budget\.cost is 100\.00"):
            submit(Job.model_validate(values), argo=argo)
    assert not argo.objects


@pytest.mark.parametrize(
    "settings",
    [
        {"prompts": "s3://none/p.parquet"},
        {"shard": {}},
        {"skip_existing": True},
    ],
)
def test_budget_that_is_not_checked_before_planning_is_said_to_be_checked_later(
    settings: dict[str, object], argo: Memory, s3_bucket: str, tmp_path: Path
) -> None:
    values = _job(s3_bucket, tmp_path, 0.8).model_dump() | BUDGET | settings
    reported: list[str] = []
    submit(Job.model_validate(values), argo=argo, report=reported.append)
    assert reported[0].endswith("The budget is not checked here, but by planning and by each pod.")


def test_numbers_to_set_suffice(s3_bucket: str, tmp_path: Path) -> None:
    late = _job(s3_bucket, tmp_path, 48)
    for days, pods in ((14, 16), (7, 30)):
        expected = forecast(late, GPU.model_copy(update={"days": days}), pods)
        assert expected is not None
        assert expected.remedy is None


def test_pods_with_several_gpus_take_less_time(s3_bucket: str, tmp_path: Path) -> None:
    expected = forecast(_job(s3_bucket, tmp_path, 48), load_profile("gpu-4"))
    assert expected is not None
    assert expected.says.startswith("About 3.1 days on 64 GPUs at once")
    assert expected.remedy is None


def test_rows_that_may_take_less_are_not_refused(s3_bucket: str, tmp_path: Path) -> None:
    expected = forecast(_job(s3_bucket, tmp_path, 48, steps=[1] * 100), GPU)
    assert expected is not None
    assert expected.remedy is None
    assert "`imagekiln estimate JOB` counts every row" in expected.says


@pytest.mark.parametrize(("days", "refused"), [(0.002, False), (0.0004, True)])
def test_computed_time_is_refused_only_where_no_gpu_could_be_so_fast(
    s3_bucket: str, tmp_path: Path, days: float, refused: bool
) -> None:
    computed = _job(s3_bucket, tmp_path, 1).model_copy(
        update={"model": postcards(model=SDXL).model, "shard": postcards().shard}
    )
    profile: Profile = GPU.model_copy(update={"days": days})
    expected = forecast(computed, profile, 1)
    assert expected is not None
    assert "computed, not measured" in expected.says
    assert (expected.remedy is not None) == refused


def test_time_that_nobody_knows_stops_no_job(argo: Memory) -> None:
    reported: list[str] = []
    submit(postcards(), argo=argo, report=reported.append)
    assert reported == [
        "How long it takes is unknown: run `imagekiln tune JOB` on its GPU or CPU, "
        "or set shard.seconds_per_image; where the job has run before, `imagekiln estimate JOB` "
        "knows."
    ]


def test_prompts_that_cannot_be_read_here_stop_no_job(argo: Memory, s3_bucket: str) -> None:
    reported: list[str] = []
    job = postcards(prompts=f"{s3_bucket}/*.parquet", shard={"seconds_per_image": 1})
    submit(job, argo=argo, report=reported.append)
    assert "unknown from here: " in reported[0]
    assert argo.workflows()


def test_retry_of_a_long_run_is_not_refused(argo: Memory, s3_bucket: str, tmp_path: Path) -> None:
    late = _job(s3_bucket, tmp_path, 48)
    assert submit(late, argo=argo, retry=True).name
