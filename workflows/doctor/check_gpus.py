"""The GPUs themselves: their claims and their driver."""

from collections import Counter

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.node_fit import Node, fit_generate, list_nodes
from imagekiln.workflows.objects import Json, get_mapping, get_mappings
from imagekiln.workflows.profiles.profile import Profile

MIN_DRIVER = 580  # CUDA 13 needs it, which PyPI's wheels of torch 2.15 are built for
DRIVER_TABLE = "docs/gpus.md#drivers-and-gpu-models"
GPU_IMAGE_NAME = "imagekiln-gpu"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
CLAIM_TEMPLATES = ResourceKind("apis/resource.k8s.io/v1", "resourceclaimtemplates", namespaced=True)
DEVICE_CLASSES = ResourceKind("apis/resource.k8s.io/v1", "deviceclasses")
RESOURCE_SLICES = ResourceKind("apis/resource.k8s.io/v1", "resourceslices")
INSTALL_DRA_DRIVER = "Install the DRA driver of your GPUs; Kubernetes must be 1.34 or later."


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
    devices: Counter[str] = Counter()
    for resource_slice in view.list_objects(RESOURCE_SLICES):
        driver = str(get_mapping(resource_slice, "spec").get("driver"))
        devices[driver] += len(get_mappings(resource_slice, "spec", "devices"))
    if not devices.total():
        return wrong("No driver publishes a device: no ResourceSlice has one.", INSTALL_DRA_DRIVER)
    counts = [f"{pluralize(devices[driver], 'device')} of {driver}" for driver in sorted(devices)]
    return ok(f"{name} asks for {', '.join(classes)}; the cluster has {', '.join(counts)}.")


@doctor_check("driver")
def check_driver(view: ClusterView, profile: Profile, image: str) -> Finding:
    """The GPUs' driver runs the CUDA of our image; another image may need another one."""
    nodes = fit_generate(list_nodes(view), profile, sized=False).nodes
    versions = {node.name: version for node in nodes if (version := _driver_version(node))}
    if not versions:
        return unknown(
            "No node with GPUs has a label with its driver's version.",
            "Install GPU feature discovery, or run nvidia-smi on a node: "
            f"{MIN_DRIVER} or later is needed.",
        )
    oldest = min(versions, key=lambda name: _major(versions[name]))
    if _major(versions[oldest]) >= MIN_DRIVER:
        distinct = ", ".join(sorted(set(versions.values())))
        return ok(f"Driver {distinct}; CUDA 13 needs {MIN_DRIVER} or later.")
    says = f"CUDA 13 needs driver {MIN_DRIVER} or later, and {oldest} has {versions[oldest]}."
    if image.rpartition("/")[2].partition("@")[0].partition(":")[0] != GPU_IMAGE_NAME:
        return unknown(
            says, f"{image} is not Imagekiln's own: check which CUDA it has ({DRIVER_TABLE})."
        )
    return wrong(
        says,
        "Update the driver, or exclude these nodes by a label in a profile of your own. PyTorch "
        f"2.15 has no build for CUDA 12 ({DRIVER_TABLE}).",
    )


def _device_classes(template: Json) -> list[str]:
    """Return the device classes that a claim template names: a request has one, or alternatives."""
    classes: set[str] = set()
    for request in get_mappings(template, "spec", "spec", "devices", "requests"):
        exact = get_mapping(request, "exactly")
        for choice in (exact, *get_mappings(request, "firstAvailable")):
            if choice.get("deviceClassName"):
                classes.add(str(choice["deviceClassName"]))
    return sorted(classes)


def _driver_version(node: Node) -> str | None:
    versions = (node.labels.get(label, "") for label in DRIVER_LABELS)
    return next((each for each in versions if each.partition(".")[0].isdecimal()), None)


def _major(version: str) -> int:
    return int(version.partition(".")[0])
