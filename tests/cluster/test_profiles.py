"""Profiles schedule on nodes that advertise what they ask for, and nowhere else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_pod, wait_for_success

NODE = "gpu-1"
CLAIM = "test-models"
# On GPU nodes, which have both images: the step that fetches runs that of the GPU.
CLAIM_PROFILE = f"""
cache: {{claim: {CLAIM}}}
steps:
  labels: [{{key: nvidia.com/gpu.present, operator: Exists}}]
  tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]
"""


@contextmanager
def resource_advertised(resource: str, count: int) -> Iterator[None]:
    """A node whose status says that it has so many of a resource."""
    amounts = {resource: str(count)}
    _patch({"status": {"capacity": amounts, "allocatable": amounts}})
    try:
        yield
    finally:
        _patch({"status": {"capacity": {resource: None}, "allocatable": {resource: None}}})


def _patch(change: kube.Object) -> None:
    kube.kubectl(
        "patch",
        "node",
        NODE,
        "--subresource",
        "status",
        "--type",
        "merge",
        "--patch",
        json.dumps(change),
    )


def job_with_profile(folder: Path, name: str, settings: str, /, **more: object) -> Job:
    """A job with a profile like `test`, of a user's own."""
    path = folder / f"{name}.yaml"
    path.write_text(f"like: test\ndescription: for a test\n{settings}\n")
    return jobs.job(cluster={"namespace": kube.NAMESPACE, "profile": str(path)}, **more)


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"])
def test_a_slice_or_a_replica_lands_where_it_is_advertised(
    tmp_path: Path, argo: ArgoApi, resource: str
) -> None:
    job = job_with_profile(
        tmp_path,
        resource.rpartition("/")[2].replace(".", "-"),
        f"gpu: {{resource: {resource}, device: cpu}}",
        shard={"images": 12},
    )
    with resource_advertised(resource, 2):
        name = submit_with_template(job, argo)
        pod = wait_for_pod(name, "generate")
        assert kube.get_field(pod, "spec", "nodeName") == NODE
        assert kube.get_field(pod, "spec", "containers", 1, "resources", "limits", resource) == "1"
        wait_for_success(name, argo)


def test_several_gpus_in_one_pod_make_a_shard_each(tmp_path: Path, argo: ArgoApi) -> None:
    job = job_with_profile(
        tmp_path, "two-gpus", "gpu: {count: 2, device: cpu}\ngenerate: {memory: 4}"
    )
    name = submit_with_template(job, argo)
    pod = wait_for_pod(name, "generate")
    assert (
        kube.get_field(pod, "spec", "containers", 1, "resources", "limits", "nvidia.com/gpu") == "2"
    )
    assert len(jobs.image_hashes(wait_for_success(name, argo))) == 12


def test_cpu_steps_stay_off_gpu_nodes_without_taints_too(argo: ArgoApi) -> None:
    nodes = [kube.name(each) for each in kube.items("nodes") if "gpu" in kube.name(each)]
    for node in nodes:
        kube.kubectl("taint", "nodes", node, "nvidia.com/gpu-")
    try:
        name = submit_with_template(jobs.job(shard={"images": 12}), argo)
        assert kube.get_field(wait_for_pod(name, "plan"), "spec", "nodeName") not in nodes
        assert kube.get_field(wait_for_pod(name, "aggregate"), "spec", "nodeName") not in nodes
        wait_for_success(name, argo)
    finally:
        for node in nodes:
            kube.kubectl("taint", "nodes", node, "nvidia.com/gpu=present:NoSchedule")


def test_a_profile_of_real_gpus_says_that_there_is_none(tmp_path: Path, argo: ArgoApi) -> None:
    job = job_with_profile(
        tmp_path, "real", "gpu: {device: cuda}\nretries: {limit: 1}", shard={"images": 12}
    )
    status = wait_for_end(submit_with_template(job, argo), argo)
    (shard,) = [each for each in status.failures if each.step == "generate"]
    assert (shard.exit_code, shard.attempts) == (75, 2)
    assert "cuda" in shard.message.lower()


@pytest.fixture
def _claim() -> Iterator[None]:
    """A claim that is bound to a folder which every node has, and everybody may write to."""
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume: kube.Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"imagekiln-{CLAIM}"},
        "spec": {
            **common,
            "capacity": size,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/tmp", "type": "Directory"},  # noqa: S108  # of a test's node
        },
    }
    claim: kube.Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": kube.NAMESPACE},
        "spec": {
            **common,
            "resources": {"requests": size},
            "volumeName": f"imagekiln-{CLAIM}",
        },
    }
    kube.apply([volume, claim])
    yield
    kube.kubectl("delete", "pvc", CLAIM, "--wait=false")
    kube.kubectl("delete", "pv", f"imagekiln-{CLAIM}", "--wait=false")


@pytest.mark.usefixtures("_claim")
def test_models_are_fetched_once_into_the_claim_and_every_pod_has_them(
    argo: ArgoApi, tmp_path: Path
) -> None:
    job = job_with_profile(tmp_path, "test-claim", CLAIM_PROFILE)
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)
    assert verify(run).ok == len(jobs.TEXTS)
    nodes = kube.get_field(kube.get("workflow", name), "status", "nodes")
    assert isinstance(nodes, dict)
    steps = [node["templateName"] for node in nodes.values() if node["type"] == "Pod"]
    assert steps.count("fetch") == 1
    assert steps.count("generate") == 2
