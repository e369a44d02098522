"""The GPUs themselves: claims, driver and metrics."""

import pytest

from imagekiln.workflows.doctor.check_gpus import check_driver, check_gpu_claim
from imagekiln.workflows.profiles.loader import load_profile
from tests.kube import Kube

GPU = load_profile("gpu")
WHOLE = "nvidia.com/gpu"
RESOURCES = "apis/resource.k8s.io/v1"
OWN_IMAGE = "registry:5000/imagekiln-gpu:0.1.0@sha256:00"
CLAIMS = f"{RESOURCES}/namespaces/imagekiln/resourceclaimtemplates"


@pytest.mark.parametrize(
    ("label", "version", "verdict"),
    [
        ("nvidia.com/cuda.driver-version.full", "580.65.06", "ok"),
        ("nvidia.com/cuda.driver-version.full", "570.172.08", "wrong"),
        ("nvidia.com/cuda.driver.major", "535", "wrong"),
        ("nvidia.com/cuda.driver.major", "", "unknown"),
    ],
)
def test_driver_before_580_does_not_run_cuda_13(
    kube: Kube, label: str, version: str, verdict: str
) -> None:
    kube.node("gpu-0", {label: version} if version else {}, has={WHOLE: "1"})
    finding = check_driver(kube.view(), GPU, OWN_IMAGE)
    assert finding.verdict == verdict
    assert (f"gpu-0 has {version}" in finding.says) == (verdict == "wrong")


def test_driver_of_nodes_that_the_job_cannot_use_does_not_matter(kube: Kube) -> None:
    kube.node("old", {"nvidia.com/cuda.driver.major": "470"}, taint="other", has={WHOLE: "1"})
    assert check_driver(kube.view(), GPU, OWN_IMAGE).verdict == "ok"


def test_image_of_the_user_may_bring_an_older_cuda(kube: Kube) -> None:
    kube.node("gpu-0", {"nvidia.com/cuda.driver.major": "550"}, has={WHOLE: "1"})
    finding = check_driver(kube.view(), GPU, "registry.example.com/mine:1")
    assert finding.verdict == "unknown"
    assert "registry.example.com/mine:1 is not Imagekiln's own" in str(finding.remedy)


def _claim(kube: Kube, devices: int = 2) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    kube.put(CLAIMS, "imagekiln-gpu", spec={"spec": {"devices": {"requests": [request]}}})
    kube.put(f"{RESOURCES}/deviceclasses", "gpu.nvidia.com")
    spec = {
        "driver": "gpu.nvidia.com",
        "devices": [{"name": f"gpu-{number}"} for number in range(devices)],
    }
    kube.put(f"{RESOURCES}/resourceslices", "gpu-0", spec=spec)


def test_gpu_that_can_be_claimed_is_ok_with_its_class_and_devices(kube: Kube) -> None:
    _claim(kube)
    finding = check_gpu_claim(kube.view(), "imagekiln-gpu")
    says = "imagekiln-gpu asks for gpu.nvidia.com; the cluster has 2 devices of gpu.nvidia.com."
    assert (finding.verdict, finding.says) == ("ok", says)


def test_missing_claim_template_is_wrong(kube: Kube) -> None:
    finding = check_gpu_claim(kube.view(), "imagekiln-gpu")
    assert finding.verdict == "wrong"
    assert finding.says == (
        "ResourceClaimTemplate imagekiln-gpu does not exist in namespace imagekiln."
    )


def test_missing_device_class_is_wrong(kube: Kube) -> None:
    _claim(kube)
    del kube.objects[f"{RESOURCES}/deviceclasses/gpu.nvidia.com"]
    assert "DeviceClass gpu.nvidia.com" in check_gpu_claim(kube.view(), "imagekiln-gpu").says


def test_driver_that_publishes_no_device_is_wrong(kube: Kube) -> None:
    _claim(kube, devices=0)
    assert "No driver publishes a device" in check_gpu_claim(kube.view(), "imagekiln-gpu").says
