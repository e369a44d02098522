"""A shard that loses its pod resumes with what is missing, and makes nothing twice."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import get_status, resubmit, stop, watch
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_pod, wait_for_success

IMAGES = 120  # on a fast machine too, there is something left to do when its pod goes


def slow_job(images: int = IMAGES, **more: object) -> Job:
    """A job of one shard that takes a while, in parts of two images."""
    texts = [jobs.TEXTS[place % len(jobs.TEXTS)] for place in range(images)]
    uri = jobs.prompts({"prompt": [*texts], "seed": list(range(images))})
    return jobs.job(prompts=uri, shard={"images": images}, defaults={"steps": 25}, **more)


def wait_for_parts(job: Job) -> dict[str, object]:
    """The parts of a run, once there are a few."""
    uri = f"{job.output}/{job.run_id}"

    def look() -> dict[str, object] | None:
        written = jobs.write_times(uri)
        return written if len(written) > 2 else None

    return kube.wait_until(300, "the first parts", look)


def check_resumed(name: str, before: dict[str, object], argo: ArgoApi) -> None:
    """The run is whole, and no part of the first pod was written again."""
    run = wait_for_success(name, argo)
    assert verify(run).ok == IMAGES
    after = jobs.write_times(run)
    assert {key: after[key] for key in before} == before
    assert get_status(name, kube.NAMESPACE, argo).images == IMAGES


@pytest.fixture(scope="module", autouse=True)
def _repaired_nodes() -> Iterator[None]:
    yield
    if kube.FAULTS.exists():
        for node in ("gpu-0", "gpu-1"):
            if not [each for each in kube.items("nodes") if kube.name(each) == node]:
                kube.inject_fault("node-start", node)


def test_pod_deleted(argo: ArgoApi) -> None:
    job = slow_job()
    name = submit_with_template(job, argo)
    before = wait_for_parts(job)
    pod = kube.name(wait_for_pod(name, "generate"))
    kube.kubectl("delete", "pod", pod, "--grace-period", "0", "--force")
    check_resumed(name, before, argo)


def test_attempts_that_ended_count_what_they_made_in_argo_s_page(argo: ArgoApi) -> None:
    job = slow_job()
    name = submit_with_template(job, argo)
    before = wait_for_parts(job)
    kube.send_signal(kube.name(wait_for_pod(name, "generate")), "SIGTERM")
    check_resumed(name, before, argo)

    nodes = kube.get_field(kube.get("workflow", name), "status", "nodes")
    counts = [
        tuple(map(int, str(node["progress"]).split("/")))
        for node in nodes.values()  # type: ignore[attr-defined]
        if node["type"] == "Pod" and node["templateName"] == "generate"
    ]
    assert len(counts) == 2
    assert [sum(numbers) for numbers in zip(*counts, strict=True)] == [IMAGES, IMAGES]


def test_evicted_through_the_api(argo: ArgoApi) -> None:
    job = slow_job()
    name = submit_with_template(job, argo)
    before = wait_for_parts(job)
    pod = kube.name(wait_for_pod(name, "generate"))
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": kube.NAMESPACE},
    }
    path = f"/api/v1/namespaces/{kube.NAMESPACE}/pods/{pod}/eviction"
    kube.kubectl("create", "--raw", path, "--filename", "-", stdin=json.dumps(body))
    check_resumed(name, before, argo)


def test_out_of_memory_is_tried_again_with_more(tmp_path: Path, argo: ArgoApi) -> None:
    profile = tmp_path / "little.yaml"
    profile.write_text(
        "like: test\ndescription: for a test\n"
        "generate: {memory: 0.45, most_memory: 3, shared_memory: 0.0625}\n"
    )
    job = slow_job(cluster={"namespace": kube.NAMESPACE, "profile": str(profile)})
    name = submit_with_template(job, argo)
    memory_by_pod: dict[str, str] = {}
    for _ in watch(name, kube.NAMESPACE, argo, every=1):
        for pod in kube.pods(name, "generate"):
            memory_by_pod[kube.name(pod)] = str(
                kube.get_field(pod, "spec", "containers", 1, "resources", "limits", "memory")
            )
    assert len(set(memory_by_pod.values())) > 1, "no attempt had more memory than the first"
    check_resumed(name, {}, argo)


def test_stopped_run_goes_on_when_it_is_retried(server: ArgoServer) -> None:
    job = slow_job()
    name = submit_with_template(job, server)
    before = wait_for_parts(job)
    stop(name, kube.NAMESPACE, server)
    assert wait_for_end(name, server).phase == "Failed"
    assert len(jobs.write_times(f"{job.output}/{job.run_id}")) < IMAGES // 2, (
        "nothing was left to do"
    )
    check_resumed(resubmit(name, kube.NAMESPACE, server).name, before, server)


def test_node_lost(argo: ArgoApi) -> None:
    job = slow_job()
    name = submit_with_template(job, argo)
    before = wait_for_parts(job)
    node = str(kube.get_field(wait_for_pod(name, "generate"), "spec", "nodeName"))
    kube.inject_fault("node-stop", node)
    try:
        check_resumed(name, before, argo)
    finally:
        kube.inject_fault("node-start", node)


def test_controller_restarted_and_store_away_for_a_minute(argo: ArgoApi) -> None:
    job = slow_job()
    name = submit_with_template(job, argo)
    before = wait_for_parts(job)
    kube.inject_fault("argo-restart")
    kube.inject_fault("s3-stop")
    time.sleep(60)
    kube.inject_fault("s3-start")
    check_resumed(name, before, argo)
