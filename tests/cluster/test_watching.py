"""What a person can watch of a run: progress, logs, and the report in Argo's page."""

import os
import re
import urllib.request
from pathlib import Path

import pytest

from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import get_status, watch
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.client.status import WorkflowStatus
from tests.cluster import jobs, kube
from tests.cluster.test_doctor import object_patched
from tests.cluster.test_losses import slow_job
from tests.cluster.test_profiles import job_with_profile
from tests.cluster.waiting import submit_with_template, wait_for_pod, wait_for_success

STAGES = ("plan", "fetch", "generate", "aggregate", "report")
WAIT_SECONDS = 180.0
IMAGES = 480  # minutes of work, since Argo shows progress once a minute


@pytest.fixture(scope="module")
def statuses(argo: ArgoApi) -> list[WorkflowStatus]:
    """A run's statuses, from its beginning to its end."""
    name = submit_with_template(slow_job(IMAGES), argo)
    pod = kube.name(wait_for_pod(name, "generate"))
    lines = logs(name, kube.NAMESPACE, 0, argo, follow=True)
    assert f'"total": {IMAGES}' in next(lines), f"{pod} says nothing of what it does"
    return list(watch(name, kube.NAMESPACE, argo, every=1))


def test_progress_rises_while_a_shard_runs(statuses: list[WorkflowStatus]) -> None:
    counts = sorted({each.made for each in statuses if each.pods.running})
    assert len(counts) > 1, "no progress was seen between the beginning and the end"
    assert any(each.rate and each.seconds_left for each in statuses)
    stages = list(dict.fromkeys(each.stage for each in statuses if each.stage))
    assert stages == [stage for stage in STAGES if stage in stages], "stages come in this order"
    assert {"generate", "report"} <= set(stages)
    assert len({each.rate for each in statuses if each.stage in ("aggregate", "report")}) == 1
    assert (statuses[-1].phase, statuses[-1].made) == ("Succeeded", IMAGES)


def test_report_is_served_with_its_pictures(
    statuses: list[WorkflowStatus], server: ArgoServer
) -> None:
    name = statuses[-1].name
    nodes = kube.get_field(kube.get("workflow", name), "status", "nodes")
    node = next(key for key, each in nodes.items() if kube.get_field(each, "outputs", "artifacts"))  # type: ignore[attr-defined]
    path = f"artifact-files/{kube.NAMESPACE}/workflows/{name}/{node}/outputs/report"
    page = "\n".join(server.connection.stream_lines(f"{path}/index.html"))
    pictures = re.findall(r'<img[^>]+src="([^"]+)"', page)
    assert pictures
    kinds = {
        _first_bytes(f"{server.url}/{path}/{picture}") for picture in (pictures[0], pictures[-1])
    }
    assert kinds == {b"\xff\xd8\xff\xe0"}, "thumbnails are JPEG"


def _first_bytes(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": os.environ["ARGO_TOKEN"]})  # noqa: S310  # our own
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # as above
        return bytes(answer.read(4))


def wait_for_cause(name: str, step: str, cause: str, argo: ArgoApi) -> WorkflowStatus:
    """The first status of a workflow in which a step waits for this cause."""
    causes: set[tuple[str, str, str]] = set()

    def look() -> WorkflowStatus | None:
        status = get_status(name, kube.NAMESPACE, argo)
        causes.update((wait.step, wait.cause, wait.message) for wait in status.waits)
        found = any((wait.step, wait.cause) == (step, cause) for wait in status.waits)
        return status if found else None

    return kube.wait_until(WAIT_SECONDS, f"{cause}, among {causes}", look)


def test_wait_for_what_no_node_has_is_explained(tmp_path: Path, argo: ArgoApi) -> None:
    job = job_with_profile(tmp_path, "wait-gpu", "gpu: {count: 16}")
    name = submit_with_template(job, argo)
    assert wait_for_cause(name, "generate", "no GPU is free", argo).stage == "generate"
    kube.kubectl("delete", "workflow", name)


def test_wait_for_the_quota_is_explained_and_ends_with_it(argo: ArgoApi) -> None:
    key = "requests.nvidia.com/gpu"
    before = kube.get_field(kube.get("resourcequota", "imagekiln"), "spec", "hard", key)
    none: kube.Object = {"spec": {"hard": {key: "0"}}}
    with object_patched("resourcequota", "imagekiln", none, {"spec": {"hard": {key: before}}}):
        name = submit_with_template(jobs.job(), argo)
        wait_for_cause(name, "generate", "the quota is used up", argo)
    wait_for_success(name, argo)
