"""An artifact store that pods cannot reach costs a report in Argo's page, and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import cast

import fsspec
import pytest
import yaml

from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import watch
from tests.cluster import jobs, kube
from tests.cluster.shell import shell
from tests.cluster.test_doctor import diagnose_by_name, object_patched
from tests.cluster.waiting import submit_with_template, wait_for_end

REPOSITORIES = "artifact-repositories"
# Nobody listens on the first; no packet to the second is answered (TEST-NET-1 of RFC 5737).
OUT_OF_REACH = ("127.0.0.1:9", "192.0.2.1:9000")
MISSING_BUCKET = "imagekiln-nothing"
MOST_SECONDS = 180.0


@pytest.fixture(scope="module", autouse=True)
def _no_pods_left() -> Iterator[None]:
    """By a pod that could not publish, the doctor knows that the store has failed."""
    yield
    kube.kubectl("delete", "workflow", "--all")


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


def seconds_after_aggregate(name: str) -> float:
    """How long a workflow lasted after its aggregation."""
    status = cast("kube.Object", kube.get("workflow", name)["status"])
    nodes = cast("dict[str, kube.Object]", status["nodes"]).values()
    ends = [str(node["finishedAt"]) for node in nodes if node.get("templateName") == "aggregate"]
    end = datetime.fromisoformat(str(status["finishedAt"]))
    return (end - max(map(datetime.fromisoformat, ends))).total_seconds()


@pytest.mark.parametrize("endpoint", OUT_OF_REACH)
def test_store_out_of_reach_is_a_warning_and_costs_minutes_at_most(
    argo: ArgoApi, endpoint: str
) -> None:
    with repository_changed(endpoint=endpoint, insecure=True):
        name = submit_with_template(jobs.job(), argo)
        status = wait_for_end(name, argo)

    assert (status.phase, status.failures, status.cause) == ("Succeeded", (), None)
    (warning,) = status.warnings
    assert (warning.step, warning.attempts) == ("publish-report", 1)
    assert seconds_after_aggregate(name) < MOST_SECONDS
    assert status.run is not None
    assert verify(status.run).ok == len(jobs.TEXTS)

    done = shell("watch", name, "--namespace", kube.NAMESPACE)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("Warning: publish-report: ")


def test_doctor_names_the_store_that_it_cannot_reach_and_that_it_is_not_the_jobs() -> None:
    with repository_changed(endpoint=OUT_OF_REACH[0], insecure=True):
        check = diagnose_by_name(jobs.job())["artifact-store"]
    assert check.verdict == "unknown"
    assert f"http://{OUT_OF_REACH[0]}" in check.says
    assert "The job's output is in another store" in check.says


@pytest.fixture
def _missing_bucket() -> None:
    """A bucket that the store lacks; some stores make one that is written to."""
    files = fsspec.filesystem("s3")
    try:
        files.pipe_file(f"{MISSING_BUCKET}/probe", b"")
    except OSError:
        return
    files.rm(MISSING_BUCKET, recursive=True)
    pytest.skip("this object store creates a bucket when something is written to it")


@pytest.mark.usefixtures("_missing_bucket")
def test_bucket_that_is_missing_is_named_by_doctor_and_is_a_warning_of_the_workflow(
    argo: ArgoApi,
) -> None:
    with repository_changed(bucket=MISSING_BUCKET):
        check = diagnose_by_name(jobs.job())["artifact-store"]
        name = submit_with_template(jobs.job(), argo)
        status = wait_for_end(name, argo)
    assert check.verdict == "wrong"
    assert "no such bucket" in check.says
    assert status.phase == "Succeeded"
    assert [warning.step for warning in status.warnings] == ["publish-report"]
    assert seconds_after_aggregate(name) < MOST_SECONDS


def test_watch_says_that_publishing_waits_for_a_secret_and_the_workflow_succeeds(
    argo: ArgoApi,
) -> None:
    """Only Kubernetes' events say why a container is not created."""
    key = {"name": "imagekiln-nothing", "key": "accesskey"}
    with repository_changed(accessKeySecret=key):
        name = submit_with_template(jobs.job(), argo)
        statuses = list(watch(name, kube.NAMESPACE, argo, every=1))
    messages = {wait.message for status in statuses for wait in status.waits}
    assert any("imagekiln-nothing" in message for message in messages), messages
    causes = {wait.cause for status in statuses for wait in status.waits}
    assert "a volume is not ready" in causes
    assert statuses[-1].phase == "Succeeded"
    assert [warning.step for warning in statuses[-1].warnings] == ["publish-report"]
