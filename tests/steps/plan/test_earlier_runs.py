"""What runs took, as the next one reads it."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.run_time import ENOUGH_IMAGES, EarlierRate, find_earlier_rate
from imagekiln.steps.runs.stats import RunRate
from tests.runs import job, write_prompts, write_rate

RATE = {
    "run_id": "postcards-1",
    "digest": "d",
    "dtype": "bfloat16",
    "speed": {},
    "device": "NVIDIA L4",
    "images": 64,
    "work": 1e9,
    "shards": 4,
    "working_seconds": 100.0,
    "loading_seconds": 40.0,
}


def read_rate(**changes: object) -> RunRate:
    return TypeAdapter(RunRate).validate_python(RATE | changes)


def source(rate: EarlierRate | None) -> str:
    return "" if rate is None else rate.source


def test_twice_the_work_in_as_many_shards_loads_as_often() -> None:
    rate = EarlierRate((read_rate(),))
    assert rate.gpu_hours(2e9, 4) == pytest.approx(240 / 3600)


def test_the_latest_runs_count_until_they_are_enough(tmp_path: Path) -> None:
    nightly = job(write_prompts(tmp_path / "prompts.parquet"), str(tmp_path / "out"))
    digest = resolve_model(nightly).facts.digest
    write_rate(nightly, "old", images=500, seconds_per_image=1.0)
    write_rate(nightly, "large", images=ENOUGH_IMAGES - 1, seconds_per_image=1.0)
    write_rate(nightly, "small", images=1, seconds_per_image=9.0)
    rate = find_earlier_rate(nightly, digest)
    assert source(rate) == "measured by 2 runs, 256 images, on cpu"

    write_rate(nightly, "newest", images=300, seconds_per_image=1.0)
    assert (
        source(find_earlier_rate(nightly, digest)) == "measured by run newest, 300 images, on cpu"
    )


def test_runs_of_other_jobs_and_gpus_count_where_there_are_no_nearer_ones(tmp_path: Path) -> None:
    first = job(write_prompts(tmp_path / "prompts.parquet"), str(tmp_path / "out"), device="cuda")
    second = first.model_copy(update={"name": "second"})
    digest = resolve_model(first).facts.digest
    write_rate(second, "on-cpu", images=300, seconds_per_image=1.0)
    assert find_earlier_rate(second, digest) is None

    write_rate(first, "on-l4", images=300, seconds_per_image=1.0, device="NVIDIA L4")
    other_job = find_earlier_rate(second, digest)
    assert source(other_job) == "measured by run on-l4 of another job, 300 images, on NVIDIA L4"

    other_gpu = find_earlier_rate(first, digest, "NVIDIA-H100-80GB-HBM3")
    assert source(other_gpu).endswith("on NVIDIA L4, another GPU than the job's")
    assert other_gpu is not None
    assert not other_gpu.is_firm
    same_gpu = find_earlier_rate(first, digest, "nvidia-l4")
    assert same_gpu is not None
    assert same_gpu.is_firm
