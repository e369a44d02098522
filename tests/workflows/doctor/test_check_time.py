"""Whether a job ends in time on the pods that the quota admits."""

from pathlib import Path

import pytest

from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_time import check_run_time
from imagekiln.workflows.profiles.loader import load_profile
from tests.jobs import job
from tests.kube import CORE, Kube

GPU = load_profile("gpu")
ROWS = {"prompt": [f"p{number}" for number in range(100)]}


def _check(kube: Kube, folder: Path, **settings: object) -> DoctorCheck:
    return check_run_time(kube.view(), job(folder, ROWS, **settings), GPU, [])


def test_time_is_that_at_the_parallelism(kube: Kube, tmp_path: Path) -> None:
    finding = _check(kube, tmp_path, shard={"seconds_per_image": 0.8 * 3600})
    assert finding.verdict == "ok"
    assert finding.says.startswith("About 5 h 0 min on 16 GPUs at once (80 GPU-hours")


def test_quota_makes_it_longer(kube: Kube, tmp_path: Path) -> None:
    kube.put(f"{CORE}/resourcequotas", "imagekiln", spec={"hard": {"requests.nvidia.com/gpu": "4"}})
    finding = _check(kube, tmp_path, shard={"seconds_per_image": 0.8 * 3600})
    assert finding.verdict == "ok"
    assert finding.says.startswith("About 20 h 0 min on 4 GPUs at once")
    assert finding.says.endswith("The quota admits 4 of 16 pods.")


def test_job_that_cannot_end_in_time_is_wrong(kube: Kube, tmp_path: Path) -> None:
    finding = _check(kube, tmp_path, shard={"seconds_per_image": 48 * 3600})
    assert finding.verdict == "wrong"
    assert "stops a workflow after 7 days." in finding.says
    assert finding.remedy is not None
    assert finding.remedy.startswith("Set `days: 14`")


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({}, "imagekiln tune JOB"),
        ({"prompts": "s3://a/{date}.parquet"}, "imagekiln doctor JOB --date"),
        ({"prompts": "/none.parquet", "shard": {"seconds_per_image": 1}}, "imagekiln estimate JOB"),
    ],
)
def test_time_that_nobody_knows_is_unknown(
    kube: Kube, tmp_path: Path, settings: dict[str, object], remedy: str
) -> None:
    finding = _check(kube, tmp_path, **settings)
    assert finding.verdict == "unknown"
    assert finding.remedy is not None
    assert remedy in finding.remedy
