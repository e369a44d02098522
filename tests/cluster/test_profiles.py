"""Profiles schedule on nodes that advertise what they ask for, and nowhere else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.ending import ended, running, submitted, succeeded

NODE = "gpu-1"


@contextmanager
def advertised(resource: str, count: int) -> Iterator[None]:
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


def with_profile(folder: Path, name: str, settings: str, **more: object) -> Job:
    """A job with a profile like `test`, of a user's own."""
    path = folder / f"{name}.yaml"
    path.write_text(f"like: test\ndescription: for a test\n{settings}\n")
    return jobs.job(cluster={"namespace": kube.NAMESPACE, "profile": str(path)}, **more)


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"])
def test_a_slice_or_a_replica_lands_where_it_is_advertised(
    tmp_path: Path, argo: ArgoApi, resource: str
) -> None:
    wanted = with_profile(
        tmp_path,
        resource.rpartition("/")[2].replace(".", "-"),
        f"gpu: {{resource: {resource}, device: cpu}}",
        shard={"images": 12},
    )
    with advertised(resource, 2):
        name = submitted(wanted, argo)
        pod = running(name, "generate")
        assert kube.at(pod, "spec", "nodeName") == NODE
        assert kube.at(pod, "spec", "containers", 1, "resources", "limits", resource) == "1"
        succeeded(name, argo)


def test_several_gpus_in_one_pod_make_a_shard_each(tmp_path: Path, argo: ArgoApi) -> None:
    wanted = with_profile(
        tmp_path, "two-gpus", "gpu: {count: 2, device: cpu}\ngenerate: {memory: 4}"
    )
    name = submitted(wanted, argo)
    pod = running(name, "generate")
    assert kube.at(pod, "spec", "containers", 1, "resources", "limits", "nvidia.com/gpu") == "2"
    assert len(jobs.made(succeeded(name, argo))) == 12


def test_cpu_steps_stay_off_gpu_nodes_without_taints_too(argo: ArgoApi) -> None:
    nodes = [kube.name(each) for each in kube.items("nodes") if "gpu" in kube.name(each)]
    for node in nodes:
        kube.kubectl("taint", "nodes", node, "nvidia.com/gpu-")
    try:
        name = submitted(jobs.job(shard={"images": 12}), argo)
        assert kube.at(running(name, "plan"), "spec", "nodeName") not in nodes
        assert kube.at(running(name, "aggregate"), "spec", "nodeName") not in nodes
        succeeded(name, argo)
    finally:
        for node in nodes:
            kube.kubectl("taint", "nodes", node, "nvidia.com/gpu=present:NoSchedule")


def test_a_profile_of_real_gpus_says_that_there_is_none(tmp_path: Path, argo: ArgoApi) -> None:
    wanted = with_profile(
        tmp_path, "real", "gpu: {device: cuda}\nretries: {limit: 1}", shard={"images": 12}
    )
    status = ended(submitted(wanted, argo), argo)
    (shard,) = [each for each in status.failures if each.step == "generate"]
    assert (shard.exit_code, shard.attempts) == (75, 2)
    assert "cuda" in shard.message.lower()
