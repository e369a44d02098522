"""What a person can watch of a run: progress, logs, and the report in Argo's page."""

import os
import re
import urllib.request

import pytest

from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import watch
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.client.status import WorkflowStatus
from tests.cluster import kube
from tests.cluster.test_losses import slow_job
from tests.cluster.waiting import submit_with_template, wait_for_pod

STAGES = ("plan", "fetch", "generate", "aggregate", "report")
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
    assert kinds == {b"\x89PNG", b"\xff\xd8\xff\xe0"}, "a plot and a thumbnail are PNG and JPEG"


def _first_bytes(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": os.environ["ARGO_TOKEN"]})  # noqa: S310  # our own
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # as above
        return bytes(answer.read(4))
