"""Every pod of a run is locked down, Argo's own containers too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import apply, watch
from imagekiln.workflows.objects import object_identity
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.security import TOKEN_FOLDER
from imagekiln.workflows.templates.workflow import build_workflow
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_pod, wait_for_success

LOCKED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def pods(argo: ArgoApi) -> dict[str, kube.Object]:
    """Every pod that a run has had, by its name."""
    pods_by_name: dict[str, kube.Object] = {}
    name = submit_with_template(jobs.job(), argo)
    for _ in watch(name, kube.NAMESPACE, argo, every=0.5):
        pods_by_name |= {kube.name(each): each for each in kube.pods(name)}
    return pods_by_name


def containers(pods: dict[str, kube.Object]) -> Iterator[tuple[str, object]]:
    """Every container of every pod, and who it is."""
    for name, pod in pods.items():
        for kind in ("initContainers", "containers"):
            for each in kube.get_field(pod, "spec", kind) or []:  # type: ignore[attr-defined]
                yield f"{name}/{kube.get_field(each, 'name')}", each


def test_the_namespace_enforces_restricted() -> None:
    labels = kube.get_field(kube.get("namespace", kube.NAMESPACE), "metadata", "labels")
    assert kube.get_field(labels, "pod-security.kubernetes.io/enforce") == "restricted"


def test_every_container_is_locked_down(pods: dict[str, kube.Object]) -> None:
    contexts = {name: kube.get_field(each, "securityContext") for name, each in containers(pods)}
    assert len(contexts) >= 4 * 2, "plan, two shards and aggregate, each with Argo's own"
    assert {name: each for name, each in contexts.items() if each != LOCKED} == {}


def test_only_argos_own_containers_have_a_token_of_kubernetes(pods: dict[str, kube.Object]) -> None:
    mounted = {
        name.rpartition("/")[2]
        for name, container in containers(pods)
        for mount in kube.get_field(container, "volumeMounts") or []  # type: ignore[attr-defined]
        if kube.get_field(mount, "mountPath") == TOKEN_FOLDER
    }
    assert mounted == {"init", "wait"}


def test_a_running_step_finds_no_token_and_argo_learns_of_its_end(argo: ArgoApi) -> None:
    name = submit_with_template(jobs.job(defaults={"steps": 40}), argo)
    pod = kube.name(wait_for_pod(name, "generate"))
    look = f"import os; print(os.path.exists({str(Path(TOKEN_FOLDER).parent)!r}))"
    shown = kube.kubectl("exec", pod, "--container", "main", "--", "python", "-c", look)
    assert shown.strip() == "False"
    wait_for_success(name, argo)  # whose outputs Argo's own containers report, with the token


def test_no_date_brings_a_secret_into_a_message(argo: ArgoApi) -> None:
    job = jobs.job()
    apply(job, argo)
    workflow = build_workflow(job, load_profile(job.cluster.profile), date="2026-11-21")
    spec: Any = workflow["spec"]
    for parameter in spec["arguments"]["parameters"]:
        if parameter["name"] == "logical-date":  # as in Argo's form, which checks none
            parameter["value"] = "$(AWS_ACCESS_KEY_ID)"
    argo.create(workflow)
    _, _, name = object_identity(workflow)
    (failure,) = wait_for_end(name, argo).failures
    assert "date '$(AWS_ACCESS_KEY_ID)': is not an ISO 8601 date" in failure.message


def test_steps_are_where_their_profile_puts_them(pods: dict[str, kube.Object]) -> None:
    nodes = {
        kube.name(each): kube.get_field(each, "metadata", "labels", "nvidia.com/gpu.present")
        for each in kube.items("nodes")
    }
    for pod in pods.values():
        step = kube.get_field(pod, "metadata", "labels", "imagekiln.dev/step")
        on_gpu = nodes[str(kube.get_field(pod, "spec", "nodeName"))] == "true"
        assert on_gpu == (step == "generate"), (
            f"{kube.name(pod)} is on {kube.get_field(pod, 'spec', 'nodeName')}"
        )


def test_only_generate_asks_for_a_gpu_and_for_one(pods: dict[str, kube.Object]) -> None:
    requested = {
        name: kube.get_field(each, "resources", "limits", "nvidia.com/gpu")
        for name, each in containers(pods)
    }
    expected = {
        name: "1" if "-generate-" in name and name.endswith("/main") else None for name in requested
    }
    assert requested == expected
