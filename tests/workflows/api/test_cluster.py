"""Jobs on a cluster from Python: a job's file is enough, on the cluster that is named."""

from datetime import date
from pathlib import Path

import pytest

from imagekiln import BadInput, cluster, read_job, schedule
from tests.workflows.memory import Memory

JOB = """\
name: postcards
prompts: s3://prompts/*.parquet
output: s3://datasets
model: {id: "bundled:shapes"}
cluster: {namespace: images, profile: gpu}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_file_and_job_are_the_same_submission(job_file: Path) -> None:
    argo = Memory()
    status = cluster.submit(job_file, date="2026-11-21", argo=argo)
    assert ("Workflow", "images", status.name) in argo.objects
    again = cluster.submit(read_job(job_file), date="2026-11-21", argo=argo)
    assert again.name == status.name
    assert [each.name for each in cluster.workflows("images", argo)] == [status.name]


def test_template_is_applied_and_schedule_created(job_file: Path) -> None:
    argo = Memory()
    template = cluster.apply(job_file, argo=argo)
    assert ("WorkflowTemplate", "images", template) in argo.objects
    name = schedule.create(job_file, "30 1 * * *", timezone="Europe/Berlin", argo=argo)
    assert ("CronWorkflow", "images", name) in argo.objects
    statuses = schedule.backfill(job_file, date(2026, 11, 1), date(2026, 11, 2), argo=argo)
    assert len(statuses) == 2


def test_retry_starts_a_round(job_file: Path) -> None:
    argo = Memory()
    first = cluster.submit(job_file, argo=argo)
    argo.end(first.name, "Succeeded")
    assert cluster.submit(job_file, retry=True, argo=argo).name != first.name


def test_mistake_is_a_sentence(job_file: Path) -> None:
    with pytest.raises(BadInput, match=r"Mars/Phobos.*does not exist"):
        cluster.submit(job_file, date="2026-11-21", timezone="Mars/Phobos", argo=Memory())
