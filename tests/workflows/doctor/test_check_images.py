"""The container images: on a node, not pulled yet, or impossible to pull."""

import pytest

from imagekiln.workflows.doctor.check_images import (
    check_cpu_image,
    check_gpu_image,
    full_image_name,
)
from imagekiln.workflows.profiles.loader import load_profile
from tests.kube import CORE, Kube

GPU = load_profile("gpu")
OWN_LABELS = {"app.kubernetes.io/part-of": "imagekiln"}


def test_image_on_a_node_is_ok(kube: Kube) -> None:
    kube.node("cpu-1", image="docker.io/library/imagekiln-cpu:0.1.0")
    finding = check_cpu_image(kube.view(), "imagekiln-cpu:0.1.0", GPU)
    assert finding.verdict == "ok"
    assert finding.says == "imagekiln-cpu:0.1.0 is on 1 of 2 nodes."


def test_image_on_no_node_is_unknown(kube: Kube) -> None:
    finding = check_gpu_image(kube.view(), "registry.example.com/gpu:1", GPU)
    assert finding.verdict == "unknown"
    assert finding.says == "No node has pulled registry.example.com/gpu:1 yet."


def test_image_that_a_pod_cannot_pull_is_wrong(kube: Kube) -> None:
    waiting = {"image": "gpu:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    kube.put(
        f"{CORE}/pods",
        "shapes-generate",
        metadata={"labels": OWN_LABELS},
        status={"containerStatuses": [waiting]},
    )
    finding = check_gpu_image(kube.view(), "gpu:1", GPU)
    assert finding.verdict == "wrong"
    assert finding.says == "Pod shapes-generate cannot pull gpu:1."


def test_pod_that_cannot_pull_argos_own_image_is_named(kube: Kube) -> None:
    waiting = {
        "image": "quay.io/argoproj/argoexec:v4.1.2",
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }
    kube.put(
        f"{CORE}/pods",
        "shapes-plan",
        metadata={"labels": OWN_LABELS},
        status={"initContainerStatuses": [waiting]},
    )
    finding = check_cpu_image(kube.view(), "cpu:1", GPU)
    assert finding.verdict == "wrong"
    assert finding.says == "Pod shapes-plan cannot pull quay.io/argoproj/argoexec:v4.1.2."


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("kiln", "docker.io/library/kiln:latest"),
        ("me/kiln:1", "docker.io/me/kiln:1"),
        ("localhost/kiln:1", "localhost/kiln:1"),
        ("registry:5000/kiln", "registry:5000/kiln:latest"),
        ("ghcr.io/me/kiln@sha256:00", "ghcr.io/me/kiln@sha256:00"),
        ("ghcr.io:443/me/kiln:1@sha256:00", "ghcr.io:443/me/kiln@sha256:00"),
    ],
)
def test_image_name_is_completed_as_nodes_list_it(image: str, full: str) -> None:
    assert full_image_name(image) == full
