"""Whether nodes have what pods ask for, and if not, which of the reasons it is."""

from pathlib import Path

import pytest

from imagekiln.steps.job.reader import validate_job
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_devices import (
    EXPORTER_LABELS,
    check_driver,
    check_gpu_claim,
    check_gpu_metrics,
)
from imagekiln.workflows.doctor.check_gpus import check_cpu_nodes, check_gpu_nodes
from imagekiln.workflows.doctor.check_images import (
    check_container_images,
    check_cpu_image,
    check_gpu_image,
    full_image_name,
)
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from tests.jobs import SHAPES
from tests.kube import CORE, H100, Kube

GPU = load_profile("gpu")
WHOLE = "nvidia.com/gpu"
RESOURCES = "apis/resource.k8s.io/v1"
OURS = "registry:5000/imagekiln-gpu:0.1.0@sha256:00"
CLAIMS = f"{RESOURCES}/namespaces/imagekiln/resourceclaimtemplates"


def _only(
    kube: Kube,
    labels: dict[str, str] | None = None,
    taint: str = "",
    has: dict[str, str] | None = None,
) -> None:
    """A cluster of one node, besides the CPU node."""
    kube.node("gpu-0", H100 if labels is None else labels, taint, has=has)


def _own(folder: Path, text: str) -> Profile:
    (folder / "own.yaml").write_text(f"description: Ours\n{text}", encoding="utf-8")
    return load_profile(str(folder / "own.yaml"))


def _remedy(found: DoctorCheck) -> str:
    assert found.remedy is not None
    return found.remedy


def test_nodes_and_gpus_that_fit_are_counted(kube: Kube) -> None:
    kube.node("gpu-1", H100, has={WHOLE: "4"})
    found = check_gpu_nodes(kube.view(), GPU)
    assert (found.verdict, found.says) == ("ok", f"2 nodes with 6 {WHOLE} (NVIDIA-H100-80GB-HBM3).")


@pytest.mark.parametrize(("limit", "waits"), [(0, False), (1, True), (5, True)])
def test_a_pool_that_a_shard_can_run_out_of_is_said(
    kube: Kube, tmp_path: Path, limit: int, waits: bool
) -> None:
    found = check_gpu_nodes(
        kube.view(), _own(tmp_path, f"retries: {{elsewhere: true, limit: {limit}}}")
    )
    assert found.verdict == "ok"
    assert ("a shard that fails on it waits" in found.says) == waits


def test_a_pool_that_grows_is_not_run_out_of(kube: Kube, tmp_path: Path) -> None:
    grows = "generate: {annotations: {karpenter.sh/do-not-disrupt: 'true'}}"
    found = check_gpu_nodes(kube.view(), _own(tmp_path, f"retries: {{elsewhere: true}}\n{grows}"))
    assert "waits" not in found.says


def test_nodes_come_page_by_page(kube: Kube) -> None:
    kube.page = 1
    assert check_gpu_nodes(kube.view(), GPU).verdict == "ok"
    assert len(kube.requests) == 2


def test_nodes_that_may_not_be_read_are_unknown(kube: Kube) -> None:
    kube.unreadable = {"nodes"}
    found = check_gpu_nodes(kube.view(), GPU)
    assert (found.verdict, found.says) == ("unknown", "You may not read nodes.")
    assert "imagekiln-doctor" in _remedy(found)


def test_a_cluster_without_gpus_is_told_to_install_what_advertises_them(kube: Kube) -> None:
    _only(kube, {})
    found = check_gpu_nodes(kube.view(), GPU)
    assert (found.verdict, found.says) == ("wrong", "None of 2 nodes advertises nvidia.com/gpu.")
    assert "GPU Operator" in _remedy(found)


def test_a_node_with_a_gpu_that_nothing_advertises_lacks_a_device_plugin(kube: Kube) -> None:
    _only(kube)
    found = check_gpu_nodes(kube.view(), GPU)
    assert (
        found.says
        == "None of 2 nodes advertises nvidia.com/gpu, though label nvidia.com/gpu.present is true on 1 of them."
    )
    assert "device plugin" in _remedy(found)


def test_gpus_that_are_advertised_by_another_name_are_named_with_a_profile_for_them(
    kube: Kube,
) -> None:
    _only(kube, has={"nvidia.com/mig-1g.10gb": "7"})
    found = check_gpu_nodes(kube.view(), GPU)
    assert (
        found.says
        == "None of 2 nodes advertises nvidia.com/gpu; they advertise nvidia.com/mig-1g.10gb."
    )
    assert "mig-1g-10gb" in _remedy(found)


@pytest.mark.parametrize(
    ("profile", "file"), [("mig-1g-10gb", "mig.yaml"), ("time-sliced", "time-slicing.yaml")]
)
def test_a_slice_or_share_that_nobody_makes_has_its_own_remedy(
    kube: Kube, profile: str, file: str
) -> None:
    found = check_gpu_nodes(kube.view(), load_profile(profile))
    assert found.verdict == "wrong"
    assert file in _remedy(found)


def test_a_label_that_no_node_has_is_named(kube: Kube) -> None:
    found = check_gpu_nodes(kube.view(), load_profile("tainted-pool"))
    assert found.verdict == "wrong"
    assert found.says == "Node gpu-0 does not have label pool In images: none has that label."


def test_a_label_with_other_values_is_said_with_them(kube: Kube, tmp_path: Path) -> None:
    text = "generate: {labels: [{key: nvidia.com/gpu.product, values: [NVIDIA-L4]}]}"
    found = check_gpu_nodes(kube.view(), _own(tmp_path, text))
    assert found.says == (
        "Node gpu-0 does not have label nvidia.com/gpu.product In NVIDIA-L4: its values are NVIDIA-H100-80GB-HBM3."
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
    _only(kube, {"memory": "81559"}, has={WHOLE: "1"})
    assert (
        check_gpu_nodes(kube.view(), _own(tmp_path, f"generate: {{labels: [{label}]}}")).verdict
        == verdict
    )


def test_a_node_that_is_cordoned_is_said_to_rest(kube: Kube) -> None:
    _only(kube, taint="node.kubernetes.io/unschedulable", has={WHOLE: "2"})
    found = check_gpu_nodes(kube.view(), GPU)
    assert (found.verdict, found.says[:43]) == (
        "wrong",
        "Node gpu-0 would do, but takes no pods now:",
    )
    assert "kubectl uncordon" in _remedy(found)
    kube.node("gpu-1", H100, has={WHOLE: "2"})
    assert check_gpu_nodes(kube.view(), GPU).verdict == "ok"


def test_a_taint_that_is_not_tolerated_is_named(kube: Kube) -> None:
    _only(kube, taint="dedicated", has={WHOLE: "2"})
    found = check_gpu_nodes(kube.view(), GPU)
    assert found.verdict == "wrong"
    assert (
        found.says
        == "Node gpu-0 would do, but the profile does not tolerate taint dedicated=present:NoSchedule."
    )


@pytest.mark.parametrize(("value", "verdict"), [("present", "ok"), ("other", "wrong")])
def test_a_toleration_of_one_value_tolerates_no_other(
    kube: Kube, tmp_path: Path, value: str, verdict: str
) -> None:
    text = f"generate: {{tolerations: [{{key: nvidia.com/gpu, operator: Equal, value: {value}}}]}}"
    assert check_gpu_nodes(kube.view(), _own(tmp_path, text)).verdict == verdict


def test_more_gpus_than_any_node_has_are_wrong(kube: Kube) -> None:
    found = check_gpu_nodes(kube.view(), load_profile("gpu-4"))
    assert found.verdict == "wrong"
    assert found.says == "A pod asks for 4 of nvidia.com/gpu, and no node has more than 2."


def test_memory_and_cpu_count_argos_own_container(kube: Kube, tmp_path: Path) -> None:
    found = check_gpu_nodes(kube.view(), _own(tmp_path, "generate: {cpu: 32, memory: 256}"))
    assert found.says == (
        "A pod asks for 32.02 of cpu, and no node has more than 32; "
        "for 256.062 GiB of memory, and no node has more than 256 GiB."
    )


def test_gpus_that_several_pods_share_unasked_are_said(kube: Kube) -> None:
    _only(kube, H100 | {"nvidia.com/gpu.replicas": "4"}, has={WHOLE: "8"})
    found = check_gpu_nodes(kube.view(), GPU)
    assert found.verdict == "ok"
    assert "on 1 node 4 pods share each GPU and its memory" in found.says


def test_a_pool_that_grows_from_nothing_is_unknown_while_it_is_empty(kube: Kube) -> None:
    _only(kube, {})
    found = check_gpu_nodes(kube.view(), load_profile("scale-from-zero"))
    assert found.verdict == "unknown"
    assert "no nodes until a pod waits" in found.says


def test_cpu_steps_have_a_node(kube: Kube) -> None:
    assert check_cpu_nodes(kube.view(), GPU).says == "1 node for plan and aggregate."


def test_cpu_steps_without_a_node_but_those_with_gpus_are_wrong(kube: Kube) -> None:
    del kube.objects["api/v1/nodes/cpu-0"]
    found = check_cpu_nodes(kube.view(), GPU)
    assert found.verdict == "wrong"
    assert "nvidia.com/gpu.present DoesNotExist" in found.says
    assert "labels: []" in _remedy(found)


@pytest.mark.parametrize(
    ("label", "version", "verdict"),
    [
        ("nvidia.com/cuda.driver-version.full", "580.65.06", "ok"),
        ("nvidia.com/cuda.driver-version.full", "570.172.08", "wrong"),
        ("nvidia.com/cuda.driver.major", "580", "ok"),
        ("nvidia.com/cuda.driver.major", "535", "wrong"),
        ("nvidia.com/cuda.driver.major", "", "unknown"),
    ],
)
def test_a_driver_before_580_does_not_run_cuda_13(
    kube: Kube, label: str, version: str, verdict: str
) -> None:
    _only(kube, {label: version} if version else {}, has={WHOLE: "1"})
    found = check_driver(kube.view(), GPU, OURS)
    assert found.verdict == verdict
    assert (f"gpu-0 has {version}" in found.says) == (verdict == "wrong")


def test_a_driver_of_nodes_that_the_job_keeps_off_does_not_matter(kube: Kube) -> None:
    kube.node("old", {"nvidia.com/cuda.driver.major": "470"}, taint="other", has={WHOLE: "1"})
    assert check_driver(kube.view(), GPU, OURS).verdict == "ok"


def test_an_image_of_the_users_may_bring_an_older_cuda(kube: Kube) -> None:
    _only(kube, {"nvidia.com/cuda.driver.major": "550"}, has={WHOLE: "1"})
    found = check_driver(kube.view(), GPU, "registry.example.com/mine:1")
    assert (found.verdict, found.says) == (
        "unknown",
        "registry.example.com/mine:1 is no image of ours, and gpu-0 has 550.",
    )


def _claim(kube: Kube, devices: int = 2) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    kube.put(CLAIMS, "imagekiln-gpu", spec={"spec": {"devices": {"requests": [request]}}})
    kube.put(f"{RESOURCES}/deviceclasses", "gpu.nvidia.com")
    spec = {
        "driver": "gpu.nvidia.com",
        "devices": [{"name": f"gpu-{number}"} for number in range(devices)],
    }
    kube.put(f"{RESOURCES}/resourceslices", "gpu-0", spec=spec)


def test_a_gpu_that_can_be_claimed_is_said_with_its_class_and_devices(kube: Kube) -> None:
    _claim(kube)
    found = check_gpu_claim(kube.view(), "imagekiln-gpu")
    said = "imagekiln-gpu asks for gpu.nvidia.com; the cluster has 2 devices of gpu.nvidia.com."
    assert (found.verdict, found.says) == ("ok", said)


def test_a_claim_template_that_is_not_there_is_wrong(kube: Kube) -> None:
    found = check_gpu_claim(kube.view(), "imagekiln-gpu")
    assert (found.verdict, found.says) == (
        "wrong",
        "There is no ResourceClaimTemplate imagekiln-gpu.",
    )


def test_a_device_class_that_is_not_there_is_wrong(kube: Kube) -> None:
    _claim(kube)
    del kube.objects[f"{RESOURCES}/deviceclasses/gpu.nvidia.com"]
    assert "device class gpu.nvidia.com" in check_gpu_claim(kube.view(), "imagekiln-gpu").says


def test_a_driver_that_publishes_no_device_is_wrong(kube: Kube) -> None:
    _claim(kube, devices=0)
    assert "No driver publishes a device" in check_gpu_claim(kube.view(), "imagekiln-gpu").says


def test_an_image_that_a_node_has_is_there(kube: Kube) -> None:
    kube.node("cpu-1", image="docker.io/library/imagekiln-cpu:0.1.0")
    found = check_cpu_image(kube.view(), "imagekiln-cpu:0.1.0", GPU)
    assert (found.verdict, found.says) == ("ok", "imagekiln-cpu:0.1.0 is there on 1 of 2 nodes.")


def test_an_image_that_no_node_has_is_unknown(kube: Kube) -> None:
    found = check_gpu_image(kube.view(), "registry.example.com/gpu:1", GPU)
    assert (found.verdict, found.says) == (
        "unknown",
        "The nodes have not pulled registry.example.com/gpu:1 yet.",
    )


def test_an_image_that_a_pod_waits_for_in_vain_is_wrong(kube: Kube) -> None:
    waiting = {"image": "gpu:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    about = {"labels": {"app.kubernetes.io/part-of": "imagekiln"}}
    kube.put(
        f"{CORE}/pods", "shapes-generate", metadata=about, status={"containerStatuses": [waiting]}
    )
    found = check_gpu_image(kube.view(), "gpu:1", GPU)
    assert (found.verdict, found.says) == ("wrong", "Pod shapes-generate cannot get gpu:1.")


def test_a_pod_that_waits_for_argos_own_image_is_named(kube: Kube) -> None:
    waiting = {
        "image": "quay.io/argoproj/argoexec:v4.1.2",
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }
    about = {"labels": {"app.kubernetes.io/part-of": "imagekiln"}}
    kube.put(
        f"{CORE}/pods", "shapes-plan", metadata=about, status={"initContainerStatuses": [waiting]}
    )
    found = check_cpu_image(kube.view(), "cpu:1", GPU)
    assert (found.verdict, found.says) == (
        "wrong",
        "Pod shapes-plan cannot get quay.io/argoproj/argoexec:v4.1.2.",
    )


def test_the_jobs_own_images_are_looked_for(kube: Kube) -> None:
    values = {"name": "a", "prompts": "s3://p/*.parquet", "output": "s3://o", "model": SHAPES}
    job = validate_job(values | {"cluster": {"cpu_image": "r.io/cpu:1", "gpu_image": "r.io/gpu:1"}})
    gpu, cpu = check_container_images(kube.view(), job, GPU)
    assert ("r.io/gpu:1" in gpu.says, "r.io/cpu:1" in cpu.says) == (True, True)


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("kiln", "docker.io/library/kiln:latest"),
        ("me/kiln:1", "docker.io/me/kiln:1"),
        ("localhost/kiln:1", "localhost/kiln:1"),
        ("registry:5000/kiln", "registry:5000/kiln:latest"),
        ("ghcr.io/me/kiln@sha256:00", "ghcr.io/me/kiln@sha256:00"),
    ],
)
def test_an_image_has_the_name_that_nodes_list(image: str, full: str) -> None:
    assert full_image_name(image) == full


@pytest.mark.parametrize("label", EXPORTER_LABELS)
def test_a_dcgm_exporter_is_found_wherever_it_is(kube: Kube, label: str) -> None:
    key, _, value = label.partition("=")
    kube.put(
        "apis/apps/v1/namespaces/imagekiln/daemonsets",
        "x",
        metadata={"labels": {key: value}, "namespace": "gpus"},
    )
    assert check_gpu_metrics(kube.view()).says == "DCGM exporter is in namespace gpus."


def test_without_a_dcgm_exporter_nothing_is_wrong(kube: Kube) -> None:
    assert check_gpu_metrics(kube.view()).verdict == "unknown"
