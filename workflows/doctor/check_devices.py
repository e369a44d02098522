"""Whether GPUs can be claimed, their driver is new enough, and somebody measures them."""

from collections import Counter
from collections.abc import Sequence

from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_gpus import fit_generate
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.kube_fields import count_noun, get_mapping, get_mappings
from imagekiln.workflows.doctor.node_fit import MAX_SHOWN, Node, list_nodes
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.profile import Profile

MIN_DRIVER_CUDA_13 = 580  # what CUDA 13 needs, which PyPI's wheels of torch 2.15 are built for
MIN_DRIVER_CUDA_12 = 525  # what CUDA 12 needs
GPU_IMAGE_NAME = "imagekiln-gpu"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
CLAIM_TEMPLATES = ResourceKind("apis/resource.k8s.io/v1", "resourceclaimtemplates", namespaced=True)
DEVICE_CLASSES = ResourceKind("apis/resource.k8s.io/v1", "deviceclasses")
RESOURCE_SLICES = ResourceKind("apis/resource.k8s.io/v1", "resourceslices")
DAEMON_SETS = ResourceKind("apis/apps/v1", "daemonsets", namespaced=True)
EXPORTER_LABELS = (
    "app.kubernetes.io/name=dcgm-exporter",
    "app=nvidia-dcgm-exporter",  # the GPU Operator's
    "app.kubernetes.io/name=gke-managed-dcgm-exporter",
    "app.kubernetes.io/component=dcgm-exporter",  # CloudWatch's operator, on EKS
)
INSTALL_DRA_DRIVER = "Install the DRA driver of your GPUs; Kubernetes must be 1.34 or later."


@doctor_check("gpu-claim")
def check_gpu_claim(view: ClusterView, name: str) -> Finding:
    """The claim template is there, its device classes too, and a driver publishes devices."""
    there = view.get(CLAIM_TEMPLATES, name)
    if there is None:
        remedy = "Make it: workflows/cluster/gpus/resource-claim-template.yaml is one."
        return wrong(f"There is no ResourceClaimTemplate {name}.", remedy)
    requests = get_mappings(there, "spec", "spec", "devices", "requests")
    classes = sorted({found for each in requests for found in _device_classes(each)})
    missing = [each for each in classes if view.get(DEVICE_CLASSES, each) is None]
    if missing:
        return wrong(
            f"{name} asks for device class {', '.join(missing)}, which is not there.",
            INSTALL_DRA_DRIVER,
        )
    devices = Counter(
        {
            str(get_mapping(each, "spec").get("driver")): 0
            for each in view.list_objects(RESOURCE_SLICES)
        }
    )
    for each in view.list_objects(RESOURCE_SLICES):
        devices[str(get_mapping(each, "spec").get("driver"))] += len(
            get_mappings(each, "spec", "devices")
        )
    if not devices.total():
        return wrong(
            "No driver publishes a device (there is none in any ResourceSlice).", INSTALL_DRA_DRIVER
        )
    said = ", ".join(
        f"{count_noun(number, 'device')} of {driver}" for driver, number in sorted(devices.items())
    )
    return ok(f"{name} asks for {', '.join(classes)}; the cluster has {said}.")


def _device_classes(request: Json) -> list[str]:
    """A request names its class, or a list of requests of which the first that fits is taken."""
    either = [get_mapping(request, "exactly"), *get_mappings(request, "firstAvailable")]
    return [str(each["deviceClassName"]) for each in either if each.get("deviceClassName")]


@doctor_check("driver")
def check_driver(view: ClusterView, profile: Profile, image: str) -> Finding:
    """The GPUs' driver runs the CUDA that our image brings; what another image brings, nobody here knows."""
    nodes = fit_generate(list_nodes(view), profile, sized=False).nodes
    if not nodes:
        return unknown("There is no node to look at.", "See gpu-nodes.")
    versions = {node.name: version for node in nodes if (version := _driver_version(node))}
    old = {
        name: version
        for name, version in versions.items()
        if int(version.partition(".")[0]) < MIN_DRIVER_CUDA_13
    }
    if old:
        names = ", ".join(
            f"{name} has {version}" for name, version in list(old.items())[:MAX_SHOWN]
        )
        if image.rpartition("/")[2].partition("@")[0].partition(":")[0] != GPU_IMAGE_NAME:
            remedy = f"CUDA 13 needs {MIN_DRIVER_CUDA_13} or later, CUDA 12 runs on {MIN_DRIVER_CUDA_12}: see which one your image has."
            return unknown(f"{image} is no image of ours, and {names}.", remedy)
        says = f"The image's CUDA 13 needs driver {MIN_DRIVER_CUDA_13} or later; {names}."
        return wrong(
            says,
            "Update the driver, or keep the job off these nodes by a label in a profile of your own.",
        )
    if not versions:
        remedy = f"Install GPU feature discovery, or see nvidia-smi on a node: {MIN_DRIVER_CUDA_13} or later is needed."
        return unknown("No node with GPUs says its driver's version.", remedy)
    return ok(
        f"{', '.join(sorted(set(versions.values())))}{_note_unlabeled(nodes, versions)}; CUDA 13 needs {MIN_DRIVER_CUDA_13}."
    )


def _driver_version(node: Node) -> str | None:
    found = [
        node.labels[key]
        for key in DRIVER_LABELS
        if node.labels.get(key, "").partition(".")[0].isdecimal()
    ]
    return found[0] if found else None


def _note_unlabeled(nodes: Sequence[Node], versions: dict[str, str]) -> str:
    silent = len(nodes) - len(versions)
    return f" ({count_noun(silent, 'node')} without that label)" if silent else ""


@doctor_check("gpu-metrics")
def check_gpu_metrics(view: ClusterView) -> Finding:
    """Somebody measures the GPUs. The job does not need it."""
    remedy = (
        "Without DCGM exporter, the dashboards show no GPU: install it, or NVIDIA's GPU Operator."
    )
    found = [
        each
        for labels in EXPORTER_LABELS
        for each in view.list_objects(DAEMON_SETS, f"labelSelector={labels}", everywhere=True)
    ]
    if not found:
        return unknown("No DCGM exporter is to be seen.", remedy)
    where = ", ".join(
        sorted({str(get_mapping(each, "metadata").get("namespace")) for each in found})
    )
    return ok(f"DCGM exporter is in namespace {where}.")
