"""How a workflow ended is not changed by who is told of it, and the logs of its pods stay."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import fsspec
import pytest
import yaml

from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from tests.cluster import jobs, kube
from tests.cluster.test_doctor import object_patched
from tests.cluster.test_profiles import job_with_profile
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_success

REPOSITORIES = "artifact-repositories"
OUT_OF_REACH = "192.0.2.1:9000"  # no packet is answered: TEST-NET-1 of RFC 5737


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
def test_webhook_that_does_not_answer_leaves_a_good_workflow_good(
    argo: ArgoApi, tmp_path: Path
) -> None:
    job = job_with_profile(tmp_path, "archived-logs", "archive_logs: true")
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)
    logs = archived_logs(name)
    assert "Nobody was notified: the webhook did not answer" in "".join(logs)
    # plan, two shards, aggregate and the two steps of the exit handler
    assert len(logs) == 6
    texts = [line for log in logs for line in log.splitlines() if line.startswith("{")]
    lines = [json.loads(text) for text in texts]
    shards = {(line["run"], line["shard"], line["attempt"]) for line in lines if "shard" in line}
    assert shards == {(run, 0, 0), (run, 1, 0)}


@pytest.fixture
def argo_url(server: ArgoServer) -> Iterator[str]:
    """Argo's server, as the namespace's defaults name it."""
    _patch_defaults({"IMAGEKILN_ARGO_URL": server.url})
    yield server.url
    _patch_defaults({"IMAGEKILN_ARGO_URL": None})


def _patch_defaults(data: dict[str, str | None]) -> None:
    patch = json.dumps({"data": data})
    kube.kubectl("patch", "configmap", "imagekiln-defaults", "--type=merge", f"--patch={patch}")


def test_notification_leads_to_the_workflow_and_its_report(
    argo: ArgoApi, server: ArgoServer, argo_url: str, tmp_path: Path
) -> None:
    job = job_with_profile(tmp_path, "archived-logs", "archive_logs: true")
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)
    log = "".join(archived_logs(name))
    assert f"{kube.NAMESPACE}/{name}: Succeeded. 12 of 12 images are ok. Dataset: {run}." in log
    assert f"Workflow: {argo_url}/workflows/{kube.NAMESPACE}/{name}" in log
    (path,) = re.findall(rf"Report: {re.escape(argo_url)}/([^\s\"]+)", log)
    page = "".join(server.connection.stream_lines(path))
    assert run in page


def archived_logs(workflow: str) -> list[str]:
    """The logs of a workflow's pods in Argo's artifact repository."""
    files = fsspec.filesystem("s3")
    names = files.find(f"s3://imagekiln-reports/{workflow}")
    return [files.cat(name).decode() for name in names if name.endswith("main.log")]


@contextmanager
def repository_changed(**settings: object) -> Iterator[None]:
    """Argo's artifact repository with other settings, until the end of the block."""
    stored = str(kube.get_field(kube.get("configmap", REPOSITORIES), "data", "s3"))
    repository = cast("kube.Object", yaml.safe_load(stored))
    changed = yaml.safe_dump({"s3": cast("kube.Object", repository["s3"]) | settings})
    with object_patched(
        "configmap", REPOSITORIES, {"data": {"s3": changed}}, {"data": {"s3": stored}}
    ):
        yield


def test_artifact_store_out_of_reach_costs_the_report_in_argos_page_alone(argo: ArgoApi) -> None:
    with repository_changed(endpoint=OUT_OF_REACH, insecure=True):
        name = submit_with_template(jobs.job(), argo)
        status = wait_for_end(name, argo)

    assert (status.phase, status.failures, status.cause) == ("Succeeded", (), None)
    assert {warning.step for warning in status.warnings} == {"publish-report"}
    assert status.run is not None
    assert verify(status.run).ok == len(jobs.TEXTS)
