"""Nodes with the profile's labels and GPUs, and their driver and claims."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagekiln.steps.models.placement import WeightSizes
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_nodes import (
    check_cpu_nodes,
    check_driver,
    check_gpu_claim,
    check_gpu_memory,
    check_gpu_nodes,
)
from tests.kube import H100, Kube

WHOLE = "nvidia.com/gpu"
OWN_IMAGE = "registry:5000/imagekiln-gpu:0.1.0@sha256:" + "0" * 64
RESOURCES = "apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/imagekiln/resourceclaimtemplates"


def test_nodes_are_counted_with_their_gpus_page_by_page(kube: Kube) -> None:
    kube.node("gpu-1", H100, has={WHOLE: "4"})
    kube.page = 1
    finding = check_gpu_nodes(kube.needs())
    assert finding.verdict == "ok"
    assert finding.says == f"2 nodes with 6 {WHOLE} (NVIDIA-H100-80GB-HBM3)."


def test_nodes_that_the_user_cannot_read_are_unknown(kube: Kube) -> None:
    kube.unreadable = {"nodes"}
    finding = check_gpu_nodes(kube.needs())
    assert (finding.verdict, finding.says) == ("unknown", "You cannot read nodes.")
    assert "imagekiln-doctor" in str(finding.remedy)


@pytest.mark.parametrize(
    ("profile", "verdict", "says", "remedy"),
    [
        ("gpu", "wrong", "No node advertises nvidia.com/gpu.", "GPU Operator"),
        ("gpu-4", "wrong", "No node advertises 4 nvidia.com/gpu.", "GPU Operator"),
        ("mig-1g-10gb", "wrong", "No node advertises nvidia.com/mig-1g.10gb.", "mig.yaml"),
        ("tainted-pool", "wrong", "No node has labels pool=images.", "kubectl label"),
        ("scale-from-zero", "unknown", "may add a node once a pod waits", "If it adds none"),
    ],
)
def test_cluster_without_the_gpus_of_a_profile_has_a_remedy(
    kube: Kube, profile: str, verdict: str, says: str, remedy: str
) -> None:
    kube.node("gpu-0", H100)
    finding = check_gpu_nodes(kube.needs(profile))
    assert finding.verdict == verdict
    assert says in finding.says
    assert remedy in str(finding.remedy)


@pytest.mark.parametrize(
    ("label", "verdict"),
    [
        ("{key: memory, values: ['40000', '81559']}", "ok"),
        ("{key: memory, operator: NotIn, values: ['81559']}", "wrong"),
        ("{key: absent, operator: NotIn, values: ['81559']}", "ok"),
        ("{key: memory, operator: Gt, values: ['40000']}", "ok"),
        ("{key: memory, operator: Exists}", "ok"),
        ("{key: memory, operator: DoesNotExist}", "wrong"),
    ],
)
def test_nodes_are_selected_by_the_labels_of_the_profile(
    kube: Kube, tmp_path: Path, label: str, verdict: str
) -> None:
    kube.node("gpu-0", {"memory": "81559"}, has={WHOLE: "1"})
    profile = tmp_path / "own.yaml"
    profile.write_text(f"description: Ours\ngenerate: {{labels: [{label}]}}")
    assert check_gpu_nodes(kube.needs(profile)).verdict == verdict


def test_cluster_without_a_cpu_node_is_wrong(kube: Kube) -> None:
    del kube.objects["api/v1/nodes/cpu-0"]
    finding = check_cpu_nodes(kube.needs())
    assert finding.verdict == "wrong"
    assert "!nvidia.com/gpu.present" in finding.says
    assert "labels: []" in str(finding.remedy)


@pytest.mark.parametrize(
    ("label", "version", "image", "verdict"),
    [
        ("nvidia.com/cuda.driver-version.full", "580.65.06", OWN_IMAGE, "ok"),
        ("nvidia.com/cuda.driver-version.full", "570.172.08", OWN_IMAGE, "wrong"),
        ("nvidia.com/cuda.driver.major", "535", OWN_IMAGE, "wrong"),
        ("nvidia.com/cuda.driver.major", "535", "registry.example.com/mine:1", "unknown"),
        ("nvidia.com/cuda.driver.major", "", OWN_IMAGE, "unknown"),
    ],
)
def test_driver_before_580_does_not_run_the_cuda_13_of_our_image(
    kube: Kube, label: str, version: str, image: str, verdict: str
) -> None:
    kube.node("gpu-0", {label: version}, has={WHOLE: "1"})
    kube.node("cpu-0", {"nvidia.com/cuda.driver.major": "470"})  # no pod of the job gets there
    finding = check_driver(kube.needs(cluster={"gpu_image": image}))
    assert finding is not None
    assert finding.verdict == verdict
    if verdict == "wrong":
        assert f"gpu-0 has {version[:3]}" in finding.says


@pytest.mark.parametrize(
    ("profile", "labels", "verdict"),
    [
        ("h100", {"nvidia.com/gpu.memory": "81559"}, "ok"),
        ("h100", {"nvidia.com/gpu.memory": "20"}, "wrong"),
        ("mig-1g-10gb", {"nvidia.com/mig-1g.10gb.memory": "21"}, "wrong"),
        ("mig-1g-10gb", {"nvidia.com/gpu.memory": "20"}, "unknown"),
    ],
)
def test_weights_are_compared_with_the_memory_of_the_gpus(
    kube: Kube, profile: str, labels: dict[str, str], verdict: str
) -> None:
    slices = {WHOLE: "1", "nvidia.com/mig-1g.10gb": "7"}
    kube.node("gpu-0", {**H100, "nvidia.com/gpu.memory": "", **labels}, has=slices)
    needs = replace(kube.needs(profile), weights=[WeightSizes(denoiser=25 * 2**20)])
    assert check_gpu_memory(needs).verdict == verdict
    assert check_gpu_memory(replace(needs, weights=())).verdict == "unknown"


def test_gpu_claim_needs_a_template_a_device_class_and_devices(kube: Kube) -> None:
    def finding() -> DoctorCheck:
        found = check_gpu_claim(kube.needs("dra"))
        assert found is not None
        return found

    assert finding().says == (
        "ResourceClaimTemplate imagekiln-gpu does not exist in namespace imagekiln."
    )
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    kube.put(CLAIMS, "imagekiln-gpu", spec={"spec": {"devices": {"requests": [request]}}})
    assert "DeviceClass gpu.nvidia.com" in finding().says
    kube.put(f"{RESOURCES}/deviceclasses", "gpu.nvidia.com")
    assert "No driver publishes a device" in finding().says
    spec = {"driver": "gpu.nvidia.com", "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
    kube.put(f"{RESOURCES}/resourceslices", "gpu-0", spec=spec)
    assert finding().says == "imagekiln-gpu can be claimed; the cluster has 2 devices."
