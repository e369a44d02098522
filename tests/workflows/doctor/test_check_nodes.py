"""The nodes that pods fit on, and where there is none, which of the reasons it is."""

from pathlib import Path

import pytest

from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_nodes import check_cpu_nodes, check_gpu_nodes
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from tests.kube import H100, Kube

GPU = load_profile("gpu")
WHOLE = "nvidia.com/gpu"


def _own_profile(folder: Path, text: str) -> Profile:
    file = folder / "own.yaml"
    file.write_text(f"description: Ours\n{text}", encoding="utf-8")
    return load_profile(str(file))


def _remedy(finding: DoctorCheck) -> str:
    assert finding.remedy is not None
    return finding.remedy


def test_nodes_that_fit_are_counted_with_their_gpus(kube: Kube) -> None:
    kube.node("gpu-1", H100, has={WHOLE: "4"})
    finding = check_gpu_nodes(kube.view(), GPU)
    assert finding.verdict == "ok"
    assert finding.says == f"2 nodes with 6 {WHOLE} (NVIDIA-H100-80GB-HBM3)."


def test_nodes_are_read_page_by_page(kube: Kube) -> None:
    kube.page = 1
    assert check_gpu_nodes(kube.view(), GPU).verdict == "ok"
    assert len(kube.requests) == 2


def test_nodes_that_the_user_cannot_read_are_unknown(kube: Kube) -> None:
    kube.unreadable = {"nodes"}
    finding = check_gpu_nodes(kube.view(), GPU)
    assert finding.verdict == "unknown"
    assert finding.says == "You cannot read nodes."
    assert "imagekiln-doctor" in _remedy(finding)


def test_remedy_for_a_cluster_without_gpus_is_what_advertises_them(kube: Kube) -> None:
    kube.node("gpu-0")
    finding = check_gpu_nodes(kube.view(), GPU)
    assert finding.verdict == "wrong"
    assert finding.says == "None of 2 nodes advertises nvidia.com/gpu."
    assert "GPU Operator" in _remedy(finding)


def test_mig_has_a_remedy_of_its_own(kube: Kube) -> None:
    finding = check_gpu_nodes(kube.view(), load_profile("mig-1g-10gb"))
    assert finding.verdict == "wrong"
    assert "mig.yaml" in _remedy(finding)


def test_label_that_no_node_has_is_named(kube: Kube) -> None:
    finding = check_gpu_nodes(kube.view(), load_profile("tainted-pool"))
    assert finding.verdict == "wrong"
    assert finding.says == "No node has label pool In images: no node has that label."


def test_label_with_other_values_is_named_with_them(kube: Kube, tmp_path: Path) -> None:
    text = "generate: {labels: [{key: nvidia.com/gpu.product, values: [NVIDIA-L4]}]}"
    finding = check_gpu_nodes(kube.view(), _own_profile(tmp_path, text))
    assert finding.says == (
        "No node has label nvidia.com/gpu.product In NVIDIA-L4: "
        "its values are NVIDIA-H100-80GB-HBM3."
    )


@pytest.mark.parametrize(
    ("label", "verdict"),
    [
        ("{key: memory, operator: Gt, values: ['40000']}", "ok"),
        ("{key: memory, operator: Lt, values: ['40000']}", "wrong"),
        ("{key: absent, operator: Gt, values: ['1']}", "wrong"),
        ("{key: memory, operator: NotIn, values: ['81559']}", "wrong"),
        ("{key: absent, operator: NotIn, values: ['81559']}", "ok"),
        ("{key: memory, operator: Exists}", "ok"),
        ("{key: memory, operator: DoesNotExist}", "wrong"),
    ],
)
def test_labels_are_compared_as_the_scheduler_does(
    kube: Kube, tmp_path: Path, label: str, verdict: str
) -> None:
    kube.node("gpu-0", {"memory": "81559"}, has={WHOLE: "1"})
    assert (
        check_gpu_nodes(
            kube.view(), _own_profile(tmp_path, f"generate: {{labels: [{label}]}}")
        ).verdict
        == verdict
    )


def test_taint_that_the_profile_does_not_tolerate_is_named(kube: Kube) -> None:
    kube.node("gpu-0", H100, "dedicated", has={WHOLE: "2"})
    finding = check_gpu_nodes(kube.view(), GPU)
    assert finding.verdict == "wrong"
    assert finding.says == (
        "No node is open to the profile's pods: gpu-0 has taint dedicated=present:NoSchedule."
    )


@pytest.mark.parametrize(("value", "verdict"), [("present", "ok"), ("other", "wrong")])
def test_toleration_of_one_value_tolerates_no_other(
    kube: Kube, tmp_path: Path, value: str, verdict: str
) -> None:
    text = f"generate: {{tolerations: [{{key: nvidia.com/gpu, operator: Equal, value: {value}}}]}}"
    assert check_gpu_nodes(kube.view(), _own_profile(tmp_path, text)).verdict == verdict


def test_more_gpus_than_any_node_has_are_wrong(kube: Kube) -> None:
    finding = check_gpu_nodes(kube.view(), load_profile("gpu-4"))
    assert finding.verdict == "wrong"
    assert finding.says == "A pod asks for 4 of nvidia.com/gpu, and no node has more than 2."


def test_memory_and_cpu_count_argos_own_container(kube: Kube, tmp_path: Path) -> None:
    finding = check_gpu_nodes(
        kube.view(), _own_profile(tmp_path, "generate: {cpu: 32, memory: 256}")
    )
    assert (
        finding.says == "A pod asks for 256.062 GiB of memory, and no node has more than 256 GiB."
    )


def test_pool_that_grows_from_zero_is_unknown_while_it_is_empty(kube: Kube) -> None:
    kube.node("gpu-0")
    finding = check_gpu_nodes(kube.view(), load_profile("scale-from-zero"))
    assert finding.verdict == "unknown"
    assert "may add a node once a pod waits" in finding.says


def test_cluster_without_a_cpu_node_is_wrong(kube: Kube) -> None:
    del kube.objects["api/v1/nodes/cpu-0"]
    finding = check_cpu_nodes(kube.view(), GPU)
    assert finding.verdict == "wrong"
    assert "nvidia.com/gpu.present DoesNotExist" in finding.says
    assert "labels: []" in _remedy(finding)
