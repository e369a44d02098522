"""What the pods of a workflow wait for is said in words while they wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status
from imagekiln.workflows.client.status import WorkflowStatus
from tests.cluster import jobs, kube
from tests.cluster.shell import shell
from tests.cluster.test_doctor import object_patched
from tests.cluster.test_profiles import job_with_profile
from tests.cluster.waiting import submit_with_template, wait_for_success

WAIT_SECONDS = 180.0


@contextmanager
def submitted(job: Job, argo: ArgoApi) -> Iterator[str]:
    """A workflow that is deleted at the end of the block."""
    name = submit_with_template(job, argo)
    try:
        yield name
    finally:
        kube.kubectl("delete", "workflow", name)


def wait_for_cause(name: str, step: str, cause: str, argo: ArgoApi) -> WorkflowStatus:
    """The first status of a workflow in which a step waits for this cause."""
    causes: set[tuple[str, str, str]] = set()

    def look() -> WorkflowStatus | None:
        status = get_status(name, kube.NAMESPACE, argo)
        causes.update((wait.step, wait.cause, wait.message) for wait in status.waits)
        found = any((wait.step, wait.cause) == (step, cause) for wait in status.waits)
        return status if found else None

    return kube.wait_until(WAIT_SECONDS, f"{cause}, among {causes}", look)


@pytest.mark.parametrize(
    ("profile", "settings", "step", "cause"),
    [
        ("wait-gpu", "gpu: {count: 16}", "generate", "no GPU is free"),
        (
            "wait-label",
            "generate: {labels: [{key: nvidia.com/gpu.product, values: [NVIDIA-B200]}]}",
            "generate",
            "no node fits the profile",
        ),
        ("wait-volume", "cache: {claim: nothing}", "fetch", "a volume is not ready"),
    ],
)
def test_wait_for_what_no_node_has_is_explained(
    tmp_path: Path, argo: ArgoApi, profile: str, settings: str, step: str, cause: str
) -> None:
    with submitted(job_with_profile(tmp_path, profile, settings), argo) as name:
        status = wait_for_cause(name, step, cause, argo)
        assert status.stage == step
        wait_for_line(f"{name}: Running; {step}", f" waits: {cause}")


def wait_for_line(*texts: str) -> None:
    """Wait until a line of `list` has all of these. It says what Argo says, not what events do."""

    def look() -> bool:
        lines = shell("workflows", "--namespace", kube.NAMESPACE).stdout.splitlines()
        return any(all(text in line for text in texts) for line in lines)

    kube.wait_until(WAIT_SECONDS, f"a line with {texts}", look)


def test_wait_for_the_quota_is_explained_and_ends_with_it(argo: ArgoApi) -> None:
    key = "requests.nvidia.com/gpu"
    before = kube.get_field(kube.get("resourcequota", "imagekiln"), "spec", "hard", key)
    none: kube.Object = {"spec": {"hard": {key: "0"}}}
    with object_patched("resourcequota", "imagekiln", none, {"spec": {"hard": {key: before}}}):
        name = submit_with_template(jobs.job(), argo)
        wait_for_cause(name, "generate", "the quota is used up", argo)
    wait_for_success(name, argo)


def test_image_that_cannot_be_pulled_is_explained(argo: ArgoApi) -> None:
    cluster = {"namespace": kube.NAMESPACE, "profile": "test", "gpu_image": "localhost/nothing:1"}
    with submitted(jobs.job(cluster=cluster), argo) as name:
        wait_for_cause(name, "generate", "the image cannot be pulled", argo)

        def names_image() -> bool:
            waits = get_status(name, kube.NAMESPACE, argo).waits
            return any("localhost/nothing:1" in wait.message for wait in waits)

        kube.wait_until(WAIT_SECONDS, "the name of the image", names_image)
