"""What Prometheus finds in pods while they generate, and in Argo's controller afterwards."""

from uuid import uuid4

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.controller_metrics import read_controller_metrics
from tests.cluster.waiting import (
    submit_with_template,
    wait_for_end,
    wait_for_pod,
    wait_for_success,
)
from tests.metrics import Series, parse

POD_READER = (
    "import urllib.request; "
    "print(urllib.request.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
)
SERVED = "argo_workflows_imagekiln_"


def test_metrics_of_a_run_outlive_its_pods(argo: ArgoApi) -> None:
    job = _job()
    name = submit_with_template(job, argo)
    wait_for_success(name, argo)

    series = _of_job(job.name)
    assert series["run_images_planned", ""] == series["run_images", "ok"] == 12
    assert series["run_images", "missing"] == series["run_images", "failed"] == 0
    assert series["runs_total", "Succeeded"] == 1
    assert series["shard_seconds_count", "Succeeded"] == 2
    assert series["run_gpu_seconds_total", "drawing"] > 0
    assert series["run_last_success_timestamp_seconds", ""] > 1.7e9
    assert series["run_duration_seconds", ""] > 1
    assert _metrics_error(name) is None


def test_run_that_cannot_be_planned_is_counted_for_its_job(argo: ArgoApi) -> None:
    job = _job(prompts=f"{jobs.BUCKET}/prompts/none-{uuid4().hex}.parquet")
    name = submit_with_template(job, argo)
    assert wait_for_end(name, argo).phase == "Failed"

    series = _of_job(job.name)
    assert series["runs_total", "Failed"] == 1
    assert series["run_images", "missing"] == 0
    assert ("run_last_success_timestamp_seconds", "") not in series
    assert _metrics_error(name) is None


def test_run_that_is_not_accepted_is_counted_with_its_images_and_gpu_time(argo: ArgoApi) -> None:
    job = _job(gates={"low_contrast": {"below": 0.5, "share": 0.0}})
    name = submit_with_template(job, argo)
    assert wait_for_end(name, argo).phase == "Failed"

    series = _of_job(job.name)
    assert series["runs_total", "Failed"] == 1
    assert series["run_images", "ok"] == 12
    assert series["run_images", "missing"] == 0
    assert series["run_gpu_seconds_total", "drawing"] > 0
    assert _metrics_error(name) is None


def test_pod_that_generates_serves_metrics_under_labels_of_its_job_run_and_shard(
    argo: ArgoApi,
) -> None:
    job = _job(defaults={"steps": 60})
    name = submit_with_template(job, argo)
    pod = wait_for_pod(name, "generate")
    labels = kube.get_field(pod, "metadata", "labels")
    assert isinstance(labels, dict)
    shard = labels["imagekiln.dev/shard"]
    assert (labels["imagekiln.dev/job"], labels["imagekiln.dev/run"]) == (job.name, job.run_id)

    def look() -> Series | None:
        command = ["exec", kube.name(pod), "--container", "main", "--", "python", "-c", POD_READER]
        try:
            text = kube.kubectl(*command)
        except AssertionError:  # it does not listen yet
            return None
        series = parse(text)
        is_at_work = series.get(("imagekiln_images_total", (("status", "ok"),)), 0) > 0
        return series if is_at_work else None

    series = kube.wait_until(300, "images in the metrics of a pod", look)
    (info,) = [dict(labels) for (family, labels) in series if family == "imagekiln_shard_info"]
    assert (info["job"], info["run"], info["shard"]) == (job.name, job.run_id, shard)
    assert (info["attempt"], info["profile"]) == ("0", "test")
    wait_for_success(name, argo)


def _job(**settings: object) -> Job:
    """A job of a name that no other test has, since counters are by job."""
    return jobs.job(name=f"metrics-{uuid4().hex[:8]}", **settings)


def _of_job(job: str) -> dict[tuple[str, str], float]:
    """The series of a job in Argo's controller: by name, and by status or use."""

    def look() -> dict[tuple[str, str], float] | None:
        series = {}
        for (name, labels), amount in parse(read_controller_metrics()).items():
            values = dict(labels)
            if name.startswith(SERVED) and values.pop("job", "") == job and "le" not in values:
                key = values.get("status") or values.get("use") or ""
                series[name.removeprefix(SERVED), key] = amount
        return series if any(name == "runs_total" for name, _ in series) else None

    return kube.wait_until(60, f"the metrics of a run of {job}", look)


def _metrics_error(workflow: str) -> object:
    """What Argo says of a workflow whose metrics had no values."""
    conditions = kube.get_field(kube.get("workflow", workflow), "status", "conditions")
    messages = [
        kube.get_field(condition, "message")
        for condition in (conditions if isinstance(conditions, list) else [])
        if kube.get_field(condition, "type") == "MetricsError"
    ]
    return messages[0] if messages else None
