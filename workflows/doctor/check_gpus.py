"""The GPUs themselves: their claims, their driver and their metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.node_fit import (
    MAX_LISTED,
    Node,
    fit_generate,
    gpu_nodes_check_name,
    list_nodes,
)
from imagekiln.workflows.objects import Json, get_mapping, get_mappings, object_namespace
from imagekiln.workflows.profiles.profile import Profile

MIN_DRIVER_CUDA_13 = 580  # CUDA 13 needs it, which PyPI's wheels of torch 2.15 are built for
MIN_DRIVER_CUDA_12 = 525
DRIVER_TABLE = "docs/gpus.md#drivers-and-gpu-models"
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
    "app.kubernetes.io/component=dcgm-exporter",  # the CloudWatch operator's, on EKS
)
INSTALL_DRA_DRIVER = "Install the DRA driver of your GPUs; Kubernetes must be 1.34 or later."
INSTALL_EXPORTER = (
    "Without DCGM exporter, jobs run all the same, but the dashboards and alerts of "
    "docs/monitoring.md know no GPU that is idle, hot or broken. Install it, or the NVIDIA GPU "
    "Operator: https://github.com/NVIDIA/dcgm-exporter"
)


@doctor_check("gpu-claim")
def check_gpu_claim(view: ClusterView, name: str) -> Finding:
    """The claim template and its device classes exist, and a driver publishes devices."""
    template = view.get(CLAIM_TEMPLATES, name)
    if template is None:
        return wrong(
            f"ResourceClaimTemplate {name} does not exist in namespace {view.namespace}.",
            f"Create one: `imagekiln manifests cluster`, then `kubectl apply -n {view.namespace} "
            "-f cluster/gpus/resource-claim-template.yaml`.",
        )
    classes = _device_classes(template)
    missing = [each for each in classes if view.get(DEVICE_CLASSES, each) is None]
    if missing:
        return wrong(
            f"ResourceClaimTemplate {name} asks for DeviceClass {', '.join(missing)}, which does "
            "not exist.",
            INSTALL_DRA_DRIVER,
        )
    devices = _devices_by_driver(view)
    if not devices.total():
        return wrong("No driver publishes a device: no ResourceSlice has one.", INSTALL_DRA_DRIVER)
    counts = [f"{pluralize(devices[driver], 'device')} of {driver}" for driver in sorted(devices)]
    return ok(f"{name} asks for {', '.join(classes)}; the cluster has {', '.join(counts)}.")


@doctor_check("driver")
def check_driver(view: ClusterView, profile: Profile, image: str) -> Finding:
    """The GPUs' driver runs the CUDA of our image; what another image needs is not known here."""
    nodes = fit_generate(list_nodes(view), profile, sized=False).nodes
    if not nodes:
        return unknown("There is no node to check.", f"See {gpu_nodes_check_name(profile)}.")
    versions = _driver_versions(nodes)
    if not versions:
        return unknown(
            "No node with GPUs has a label with its driver's version.",
            "Install GPU feature discovery, or run nvidia-smi on a node: "
            f"{MIN_DRIVER_CUDA_13} or later is needed.",
        )
    old = {name: version for name, version in versions.items() if _is_too_old(version)}
    if old:
        return _old_driver(image, old)

    unlabeled = len(nodes) - len(versions)
    note = f" ({pluralize(unlabeled, 'node')} without that label)" if unlabeled else ""
    distinct = ", ".join(sorted(set(versions.values())))
    return ok(f"Driver {distinct}{note}; CUDA 13 needs {MIN_DRIVER_CUDA_13} or later.")


@doctor_check("gpu-metrics")
def check_gpu_metrics(view: ClusterView) -> Finding:
    """DCGM exporter measures the GPUs, for dashboards and alerts. Jobs do not need it."""
    exporters: list[Json] = []
    for label in EXPORTER_LABELS:
        query = f"labelSelector={label}"
        exporters += view.list_objects(DAEMON_SETS, query, everywhere=True)
    if not exporters:
        return unknown("No DaemonSet of DCGM exporter exists.", INSTALL_EXPORTER)
    namespaces = sorted({object_namespace(exporter) for exporter in exporters})
    return ok(f"DCGM exporter runs in namespace {', '.join(namespaces)}.")


def _device_classes(template: Json) -> list[str]:
    """The device classes that a claim template names: a request names one, or alternatives."""
    classes: set[str] = set()
    for request in get_mappings(template, "spec", "spec", "devices", "requests"):
        exact = get_mapping(request, "exactly")
        for choice in (exact, *get_mappings(request, "firstAvailable")):
            if choice.get("deviceClassName"):
                classes.add(str(choice["deviceClassName"]))
    return sorted(classes)


def _devices_by_driver(view: ClusterView) -> Counter[str]:
    devices: Counter[str] = Counter()
    for resource_slice in view.list_objects(RESOURCE_SLICES):
        driver = str(get_mapping(resource_slice, "spec").get("driver"))
        devices[driver] += len(get_mappings(resource_slice, "spec", "devices"))
    return devices


def _driver_versions(nodes: Sequence[Node]) -> Mapping[str, str]:
    """The driver's version by node, of those nodes that have a label with it."""
    versions: dict[str, str] = {}
    for node in nodes:
        for label in reversed(DRIVER_LABELS):  # the full version wins
            version = node.labels.get(label, "")
            if version.partition(".")[0].isdecimal():
                versions[node.name] = version
    return versions


def _is_too_old(version: str) -> bool:
    return int(version.partition(".")[0]) < MIN_DRIVER_CUDA_13


def _old_driver(image: str, versions: Mapping[str, str]) -> Finding:
    """Old drivers are wrong for our image; another image may bring an older CUDA."""
    names = list(versions)[:MAX_LISTED]
    nodes = ", ".join(f"{name} has {versions[name]}" for name in names)
    image_name = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    if image_name != GPU_IMAGE_NAME:
        return unknown(
            f"{image} is not Imagekiln's own image, and {nodes}.",
            f"Check which CUDA it has: CUDA 13 needs driver {MIN_DRIVER_CUDA_13} or later, or "
            f"NVIDIA's compatibility libraries in the image ({DRIVER_TABLE}); CUDA 12 needs "
            f"{MIN_DRIVER_CUDA_12}.",
        )
    return wrong(
        f"CUDA 13 of the image needs driver {MIN_DRIVER_CUDA_13} or later; {nodes}.",
        "Update the driver, or exclude these nodes by a label in a profile of your own. PyTorch "
        f"2.15 has no build for CUDA 12 ({DRIVER_TABLE}).",
    )
