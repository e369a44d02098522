"""Doctor names each prerequisite that is broken, one at a time, with its remedy."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import apply
from imagekiln.workflows.client.connect import kubernetes_access
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.diagnosis import collect_diagnosis, diagnose
from imagekiln.workflows.templates.workflow import job_parameter
from tests.cluster import jobs, kube
from tests.cluster.shell import shell

GPU_NODES = ("gpu-0", "gpu-1")


def job(**changes: object) -> Job:
    return jobs.job(**changes)


def diagnose_by_name(job_to_check: Job) -> dict[str, DoctorCheck]:
    """Doctor's checks by name."""
    checks = diagnose(job_to_check, ApiConnection(kubernetes_access()))
    return {check.name: check for check in collect_diagnosis(job_to_check, checks).checks}


def wrong_checks(job_to_check: Job) -> dict[str, str]:
    """The checks that are wrong, with message and remedy."""
    checks = diagnose_by_name(job_to_check).values()
    assert all(check.remedy for check in checks if check.verdict == "wrong")
    return {
        check.name: f"{check.says} {check.remedy}" for check in checks if check.verdict == "wrong"
    }


@pytest.fixture(autouse=True)
def _registered(argo: ArgoApi) -> None:
    apply(job(), argo)


@contextmanager
def object_deleted(kind: str, name: str) -> Iterator[None]:
    """Delete an object, and create it again afterwards."""
    stored = kube.get(kind, name)
    kube.kubectl("delete", kind, name)
    try:
        yield
    finally:
        metadata = cast("kube.Object", stored["metadata"])
        stored["metadata"] = {
            key: metadata[key]
            for key in ("name", "namespace", "labels", "annotations")
            if key in metadata
        }
        kube.apply([stored])


@contextmanager
def object_patched(
    kind: str, name: str, change: Mapping[str, object], back: Mapping[str, object], *more: str
) -> Iterator[None]:
    """Patch an object, and patch it back afterwards."""
    how = ("patch", kind, name, "--type", "merge", *more, "--patch")
    kube.kubectl(*how, json.dumps(change))
    try:
        yield
    finally:
        kube.kubectl(*how, json.dumps(back))


@contextmanager
def nodes_patched(
    change: Mapping[str, object], back: Mapping[str, object], *more: str
) -> Iterator[None]:
    """Patch every GPU node, and patch it back afterwards."""
    with (
        object_patched("node", GPU_NODES[0], change, back, *more),
        object_patched("node", GPU_NODES[1], change, back, *more),
    ):
        yield


def profile(folder: Path, settings: str) -> Job:
    """A job with a profile of its own."""
    path = folder / "own.yaml"
    path.write_text(f"like: test\ndescription: for a test\n{settings}\n")
    return job(cluster={"namespace": kube.NAMESPACE, "profile": str(path)})


def test_whole_cluster_has_nothing_wrong() -> None:
    assert wrong_checks(job()) == {}


@pytest.mark.parametrize(
    ("kind", "name", "check"),
    [
        ("serviceaccount", "imagekiln", "service-accounts"),
        ("serviceaccount", "imagekiln-further", "service-accounts"),
        ("rolebinding", "imagekiln-executor", "pod-rights"),
        ("secret", "s3-credentials", "store-credentials"),
        ("configmap", "artifact-repositories", "artifact-repository"),
    ],
)
def test_object_that_is_missing_is_named(kind: str, name: str, check: str) -> None:
    with object_deleted(kind, name):
        checks = wrong_checks(job())
    assert [*checks] == [check]


def test_quota_that_no_pod_fits_in_is_named() -> None:
    key = "requests.nvidia.com/gpu"
    hard: kube.Object = {key: "0"}
    before: kube.Object = {
        key: kube.get_field(kube.get("resourcequota", "imagekiln"), "spec", "hard", key)
    }
    with object_patched(
        "resourcequota", "imagekiln", {"spec": {"hard": hard}}, {"spec": {"hard": before}}
    ):
        assert "requests.nvidia.com/gpu" in wrong_checks(job())["quota"]


def test_gpus_that_nobody_advertises_are_named() -> None:
    gone: kube.Object = {"nvidia.com/gpu": None}
    back: kube.Object = {"nvidia.com/gpu": "4"}
    change = {"status": {"capacity": gone, "allocatable": gone}}
    with nodes_patched(
        change, {"status": {"capacity": back, "allocatable": back}}, "--subresource", "status"
    ):
        assert "device plugin" in wrong_checks(job())["gpu-nodes"]


def test_label_that_no_node_has_is_named(tmp_path: Path) -> None:
    labels = "generate: {labels: [{key: nvidia.com/gpu.product, values: [NVIDIA-B200]}]}"
    assert "nvidia.com/gpu.product" in wrong_checks(profile(tmp_path, labels))["gpu-nodes"]


def test_prompts_that_are_missing_are_named() -> None:
    assert "nothing" in wrong_checks(job(prompts=f"{jobs.BUCKET}/nothing/*.parquet"))["prompts"]


def test_store_that_refuses_our_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job_parameter(job()))
    other = {"AWS_SECRET_ACCESS_KEY": "another"}
    done = shell("doctor", str(tmp_path / "job.yaml"), "--format", "json", environment=other)
    checks = {
        check["name"] for check in json.loads(done.stdout)["checks"] if check["verdict"] == "wrong"
    }
    assert (done.returncode, checks) == (2, {"output", "prompts"})


def test_submitters_rights_are_enough_to_find_nothing_wrong() -> None:
    token = kube.kubectl("create", "token", "imagekiln-submitter").strip()
    submitter = kube.with_token(kubernetes_access(), token)
    checks = [check for check in diagnose(job(), ApiConnection(submitter)) if check.verdict != "ok"]
    assert {check.name for check in checks if check.verdict == "wrong"} == set()
    assert {check.name for check in checks} <= {
        "store-credentials",
        "argo-version",
        "argo-controller",
        "time",  # nobody has measured the test's model
    }
