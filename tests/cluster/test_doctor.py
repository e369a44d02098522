"""Each prerequisite that is broken, one at a time, is named by doctor, with what to do."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.access import kubernetes_access
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import apply
from imagekiln.workflows.client.http import ApiAccess, ApiConnection
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.diagnosis import collect_diagnosis, diagnose
from imagekiln.workflows.templates.workflow import job_parameter
from tests.cluster import jobs, kube
from tests.cluster.shell import shell

GPU_NODES = ("gpu-0", "gpu-1")


def job(**changes: object) -> Job:
    return jobs.job(**changes)


def diagnosed(wanted: Job) -> dict[str, DoctorCheck]:
    """What doctor says, by the prerequisite's name."""
    checks = diagnose(wanted, ApiConnection(kubernetes_access()))
    return {each.name: each for each in collect_diagnosis(wanted, checks).checks}


def wrong(wanted: Job) -> dict[str, str]:
    """What is wrong, and what doctor says of it."""
    found = diagnosed(wanted).values()
    assert all(each.remedy for each in found if each.verdict == "wrong")
    return {each.name: f"{each.says} {each.remedy}" for each in found if each.verdict == "wrong"}


@pytest.fixture(autouse=True)
def _registered(argo: ArgoApi) -> None:
    apply(job(), argo)


@contextmanager
def without(kind: str, name: str) -> Iterator[None]:
    """An object is not there, and is afterwards."""
    there = kube.get(kind, name)
    kube.kubectl("delete", kind, name)
    try:
        yield
    finally:
        about = cast("kube.Object", there["metadata"])
        there["metadata"] = {
            key: about[key]
            for key in ("name", "namespace", "labels", "annotations")
            if key in about
        }
        kube.apply([there])


@contextmanager
def patched(
    kind: str, name: str, change: Mapping[str, object], back: Mapping[str, object], *more: str
) -> Iterator[None]:
    """An object is changed, and changed back."""
    how = ("patch", kind, name, "--type", "merge", *more, "--patch")
    kube.kubectl(*how, json.dumps(change))
    try:
        yield
    finally:
        kube.kubectl(*how, json.dumps(back))


@contextmanager
def nodes(change: Mapping[str, object], back: Mapping[str, object], *more: str) -> Iterator[None]:
    """Every GPU node is changed, and changed back."""
    with (
        patched("node", GPU_NODES[0], change, back, *more),
        patched("node", GPU_NODES[1], change, back, *more),
    ):
        yield


def profile(folder: Path, settings: str) -> Job:
    """A job with a profile of its own."""
    path = folder / "own.yaml"
    path.write_text(f"like: test\ndescription: for a test\n{settings}\n")
    return job(cluster={"namespace": kube.NAMESPACE, "profile": str(path)})


def test_whole_cluster_has_nothing_wrong() -> None:
    assert wrong(job()) == {}


@pytest.mark.parametrize(
    ("kind", "name", "check"),
    [
        ("serviceaccount", "imagekiln", "service-accounts"),
        ("serviceaccount", "imagekiln-further", "service-accounts"),
        ("rolebinding", "imagekiln-executor", "pod-rights"),
        ("secret", "s3-credentials", "store-credentials"),
        ("configmap", "artifact-repositories", "report-artifact"),
    ],
)
def test_object_that_is_missing_is_named(kind: str, name: str, check: str) -> None:
    with without(kind, name):
        found = wrong(job())
    assert [*found] == [check]


def test_namespace_that_is_missing_is_named() -> None:
    found = wrong(job(cluster={"namespace": "nowhere", "profile": "test"}))
    assert "nowhere" in found["namespace"]


def test_quota_that_no_pod_fits_in_is_named() -> None:
    key = "requests.nvidia.com/gpu"
    hard: kube.Object = {key: "0"}
    before: kube.Object = {
        key: kube.at(kube.get("resourcequota", "imagekiln"), "spec", "hard", key)
    }
    with patched(
        "resourcequota", "imagekiln", {"spec": {"hard": hard}}, {"spec": {"hard": before}}
    ):
        assert "requests.nvidia.com/gpu" in wrong(job())["quota"]


def test_gpus_that_nobody_advertises_are_named() -> None:
    gone: kube.Object = {"nvidia.com/gpu": None}
    back: kube.Object = {"nvidia.com/gpu": "4"}
    change = {"status": {"capacity": gone, "allocatable": gone}}
    with nodes(
        change, {"status": {"capacity": back, "allocatable": back}}, "--subresource", "status"
    ):
        assert "device plugin" in wrong(job())["gpu-nodes"]


def test_label_that_no_node_has_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    labels = "generate: {labels: [{key: nvidia.com/gpu.product, values: [NVIDIA-B200]}]}"
    said = wrong(profile(tmp_path, labels))["gpu-nodes"]
    assert "nvidia.com/gpu.product" in said
    assert "NVIDIA-H100-80GB-HBM3" in said


def test_taint_that_is_not_tolerated_is_named(tmp_path: Path) -> None:
    assert "nvidia.com/gpu" in wrong(profile(tmp_path, "generate: {tolerations: []}"))["gpu-nodes"]


def test_driver_that_is_too_old_is_named(tmp_path: Path) -> None:
    label = "nvidia.com/cuda.driver-version.full"
    there = str(kube.at(kube.get("node", GPU_NODES[0]), "metadata", "labels", label))
    with nodes(
        {"metadata": {"labels": {label: "535.104.05"}}}, {"metadata": {"labels": {label: there}}}
    ):
        assert "535.104.05" in wrong(profile(tmp_path, "gpu: {device: cuda}"))["driver"]


def test_cpu_steps_without_a_node_are_named(tmp_path: Path) -> None:
    assert "cpu-nodes" in wrong(profile(tmp_path, "steps: {node_selector: {pool: cpu}}"))


@pytest.mark.parametrize(
    ("settings", "check", "name"),
    [
        ("generate: {runtime_class: nvidia}", "runtime-class", "nvidia"),
        ("generate: {priority_class: nightly}", "priority-class", "nightly"),
        ("cache: {claim: models}", "model-cache", "models"),
        ("cache: {host_path: /models}", "namespace", "host_path"),
        ("sharing: {semaphore: nights}", "semaphore", "nights"),
        ("gpu: {claim: a-gpu}", "gpu-claim", "a-gpu"),
    ],
)
def test_what_a_profile_names_and_is_not_there_is_named(
    tmp_path: Path, settings: str, check: str, name: str
) -> None:
    assert name in wrong(profile(tmp_path, settings))[check]


def test_template_of_another_profile_is_named(tmp_path: Path, argo: ArgoApi) -> None:
    wanted = profile(tmp_path, "gpu: {count: 1}")
    apply(wanted, argo)
    assert "apply" in wrong(profile(tmp_path, "gpu: {count: 2}"))["template"]


def test_bucket_that_cannot_be_is_named() -> None:
    assert "No_Bucket" in wrong(job(output="s3://No_Bucket/out"))["output"]


def test_prompts_that_are_missing_are_named() -> None:
    assert "nothing" in wrong(job(prompts=f"{jobs.BUCKET}/nothing/*.parquet"))["prompts"]


def test_store_that_refuses_our_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job_parameter(job()))
    other = {"AWS_SECRET_ACCESS_KEY": "another"}
    done = shell("doctor", str(tmp_path / "job.yaml"), "--output", "json", environment=other)
    found = {
        each["name"] for each in json.loads(done.stdout)["checks"] if each["verdict"] == "wrong"
    }
    assert (done.returncode, found) == (2, {"output", "prompts"})


def test_right_that_a_submitter_lacks_is_named() -> None:
    token = kube.kubectl("create", "token", "imagekiln-sender").strip()
    reached = kubernetes_access()
    stranger = ApiAccess(reached.url, lambda: f"Bearer {token}", reached.verify)
    found = {each.name: each for each in diagnose(job(), ApiConnection(stranger))}
    assert found["your-rights"].verdict == "wrong"
    assert "imagekiln-submitter" in str(found["your-rights"].remedy)


def test_submitters_rights_are_enough_to_find_nothing_wrong() -> None:
    token = kube.kubectl("create", "token", "imagekiln-submitter").strip()
    reached = kubernetes_access()
    submitter = ApiAccess(reached.url, lambda: f"Bearer {token}", reached.verify)
    found = [each for each in diagnose(job(), ApiConnection(submitter)) if each.verdict != "ok"]
    assert {each.name for each in found if each.verdict == "wrong"} == set()
    assert {each.name for each in found} <= {
        "store-credentials",
        "gpu-metrics",
        "argo-version",
        "argo-controller",
    }
