"""How a workflow ended is not changed by who is told of it, and the logs of its pods stay."""

import json
from collections.abc import Iterator

import fsspec
import pytest

from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_success


@pytest.fixture
def _closed_webhook() -> Iterator[None]:
    """A webhook at which nobody listens."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "imagekiln-webhook"},
        "stringData": {"url": "http://127.0.0.1:9/hook", "body": '{"text": "{status}"}'},
    }
    kube.kubectl("apply", "--filename", "-", stdin=json.dumps(secret))
    yield
    kube.kubectl("delete", "secret", "imagekiln-webhook")


@pytest.mark.usefixtures("_closed_webhook")
def test_webhook_that_does_not_answer_leaves_a_good_workflow_good(argo: ArgoApi) -> None:
    name = submit_with_template(jobs.job(), argo)
    wait_for_success(name, argo)
    logs = archived_logs(name)
    assert "Nobody was notified: the webhook did not answer" in "".join(logs)
    # plan, two shards, aggregate and the exit handler
    assert len(logs) == 5


def archived_logs(workflow: str) -> list[str]:
    """The logs of a workflow's pods in Argo's artifact repository."""
    files = fsspec.filesystem("s3")
    names = files.find(f"s3://imagekiln-reports/{workflow}")
    return [files.cat(name).decode() for name in names if name.endswith("main.log")]
