"""Checks of nodes: the profile's labels and GPUs, their driver and memory.

Taints and free capacity are left to the scheduler, whose message `watch` prints.
"""

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.models.placement import GIB, PLACEMENTS, choose_placement
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Needs,
    doctor_check,
    ok,
    split_remedy,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.objects import Json, get_mapping, get_mappings, get_texts, object_name
from imagekiln.workflows.profiles.profile import GPU_LABEL, NodeLabel, PodSettings

NODES = ResourceKind("api/v1", "nodes")
# Autoscalers read these labels. The nodes for a profile with an autoscaler may not exist yet.
AUTOSCALER_ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
}
LABEL_ADVICE = (
    "See `kubectl get nodes --show-labels`, and label a node: `kubectl label node NODE KEY=VALUE`. "
    "Or ask for other labels in a profile of your own."
)
PLUGIN_ADVICE = (
    "Install the device plugin that advertises it, such as the NVIDIA GPU Operator, and add nodes "
    "with GPUs. For MIG, run the commands at the top of cluster/gpus/mig.yaml, which `imagekiln "
    "manifests cluster` writes."
)
MIN_DRIVER = 580  # CUDA 13 needs it, which PyPI's wheels of torch 2.15 are built for
DRIVER_TABLE = "docs/gpus.md#drivers-and-gpu-models"
GPU_IMAGE_NAME = "imagekiln-gpu"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
CLAIM_TEMPLATES = ResourceKind("apis/resource.k8s.io/v1", "resourceclaimtemplates", namespaced=True)
DEVICE_CLASSES = ResourceKind("apis/resource.k8s.io/v1", "deviceclasses")
RESOURCE_SLICES = ResourceKind("apis/resource.k8s.io/v1", "resourceslices")
INSTALL_DRA_DRIVER = "Install the DRA driver of your GPUs; Kubernetes must be 1.34 or later."
SHARED_SUFFIX = ".shared"  # for GPUs shared by pods; the GPU's name is in the label
MIB_PER_GIB = 1024


@doctor_check("gpu-nodes")
def check_gpu_nodes(needs: Needs) -> DoctorCheck:
    """Check that a node with the profile's labels advertises as many GPUs as a pod requests."""
    gpu, pod = needs.profile.gpu, needs.profile.generate
    nodes = _gpu_nodes(needs)
    if not _labeled_nodes(needs.view, pod):
        return _no_node(f"No node has labels {_label_selector(pod)}.", LABEL_ADVICE, pod)
    if not nodes:
        amount = f"{gpu.count} {gpu.resource}" if gpu.count > 1 else gpu.resource
        return _no_node(f"No node advertises {amount}.", PLUGIN_ADVICE, pod)
    if gpu.claim:
        return ok(f"{pluralize(len(nodes), 'node')} for pods that claim a GPU.")
    total = sum(_gpu_count(node, gpu.resource) for node in nodes)
    products = ", ".join(sorted({_labels(node).get(GPU_LABEL, "unnamed") for node in nodes}))
    return ok(f"{pluralize(len(nodes), 'node')} with {total} {gpu.resource} ({products}).")


@doctor_check("cpu-nodes")
def check_cpu_nodes(needs: Needs) -> DoctorCheck:
    """Check that a node has the labels that plan and aggregate request."""
    pod = needs.profile.steps
    nodes = _labeled_nodes(needs.view, pod)
    if nodes:
        return ok(f"{pluralize(len(nodes), 'node')} for plan and aggregate.")
    advice = f"{LABEL_ADVICE} If every node has GPUs, set steps: {{labels: []}} there."
    return _no_node(f"No node has labels {_label_selector(pod)}.", advice, pod)


@doctor_check("gpu-claim")
def check_gpu_claim(needs: Needs) -> DoctorCheck | None:
    """Check that the claim template and its device classes exist, and devices are published."""
    name = needs.profile.gpu.claim
    if name is None:
        return None
    view = needs.view
    template = view.get(CLAIM_TEMPLATES, name)
    if template is None:
        return wrong(
            f"ResourceClaimTemplate {name} does not exist in namespace {view.namespace}.",
            f"Create one: `imagekiln manifests cluster`, then `kubectl apply -n {view.namespace} "
            "-f cluster/gpus/resource-claim-template.yaml`.",
        )
    for request in get_mappings(template, "spec", "spec", "devices", "requests"):
        device_class = str(get_mapping(request, "exactly").get("deviceClassName", ""))
        if device_class and view.get(DEVICE_CLASSES, device_class) is None:
            return wrong(
                f"ResourceClaimTemplate {name} asks for DeviceClass {device_class}, which does "
                "not exist.",
                INSTALL_DRA_DRIVER,
            )
    slices = view.list_objects(RESOURCE_SLICES)
    devices = sum(len(get_mappings(each, "spec", "devices")) for each in slices)
    if not devices:
        return wrong("No driver publishes a device: no ResourceSlice has one.", INSTALL_DRA_DRIVER)
    return ok(f"{name} can be claimed; the cluster has {pluralize(devices, 'device')}.")


@doctor_check("driver")
def check_driver(needs: Needs) -> DoctorCheck | None:
    """Check that the GPU driver supports the CUDA of our image. Other images may differ."""
    if needs.profile.gpu.device != "cuda":
        return None
    versions = [(_driver_version(node), object_name(node)) for node in _gpu_nodes(needs)]
    versions = [(version, name) for version, name in versions if version]
    if not versions:
        return unknown(
            "No node with GPUs has a label with its driver's version.",
            "Install GPU feature discovery, or run nvidia-smi on a node: "
            f"{MIN_DRIVER} or later is needed.",
        )
    oldest, node = min(versions)
    if oldest >= MIN_DRIVER:
        return ok(f"Driver {oldest} or later; CUDA 13 needs {MIN_DRIVER} or later.")
    says = f"CUDA 13 needs driver {MIN_DRIVER} or later, and {node} has {oldest}."
    image = needs.job.cluster.gpu_image or needs.profile.generate.image
    if GPU_IMAGE_NAME not in image:
        return unknown(
            says, f"{image} is not Imagekiln's own: check which CUDA it has ({DRIVER_TABLE})."
        )
    return wrong(
        says,
        "Update the driver, or exclude these nodes by a label in a profile of your own. PyTorch "
        f"2.15 has no build for CUDA 12 ({DRIVER_TABLE}).",
    )


@doctor_check("gpu-memory")
def check_gpu_memory(needs: Needs) -> DoctorCheck:
    """Check that the weights of the job's models fit in the memory of every possible GPU."""
    # From GPU feature discovery, for a GPU or slice of the node.
    label = f"{needs.profile.gpu.resource.removesuffix(SHARED_SUFFIX)}.memory"
    labels = [(_labels(node).get(label, ""), object_name(node)) for node in _gpu_nodes(needs)]
    sizes = [(int(mib) / MIB_PER_GIB, name) for mib, name in labels if mib.isdecimal()]
    weights = needs.weights
    if not sizes or not weights or isinstance(weights, KilnError):
        return unknown(
            "The size of the weights, or of the GPUs' memory, is not known.",
            "See model, and install GPU feature discovery, or compare them yourself.",
        )
    gib, name = min(sizes)
    try:
        placement = choose_placement(needs.job, weights, gib, f"a GPU of node {name}")
    except BadInput as error:
        return wrong(*split_remedy(error))
    total = sum(each.total for each in weights) / GIB
    where = PLACEMENTS[placement or "resident"]
    return ok(f"The weights take {total:.1f} GiB, {where}; the smallest GPU has {gib:.1f} GiB.")


def _labeled_nodes(view: ClusterView, pod: PodSettings) -> list[Json]:
    return view.list_objects(NODES, f"labelSelector={_label_selector(pod)}")


def _gpu_nodes(needs: Needs) -> list[Json]:
    """Return the nodes for generate. With a claim, only the driver knows which have devices."""
    gpu = needs.profile.gpu
    nodes = _labeled_nodes(needs.view, needs.profile.generate)
    return [node for node in nodes if gpu.claim or _gpu_count(node, gpu.resource) >= gpu.count]


def _label_selector(pod: PodSettings) -> str:
    """Return the node labels that a pod requests, as a label selector of the Kubernetes API."""
    own = [f"{key}={value}" for key, value in pod.node_selector.items()]
    return ",".join([*own, *map(_label_term, pod.labels)])


def _label_term(label: NodeLabel) -> str:
    match label.operator:
        case "In" | "NotIn":
            return f"{label.key} {label.operator.lower()} ({','.join(label.values)})"
        case "DoesNotExist":
            return f"!{label.key}"
        case _:  # list selectors cannot compare numbers
            return label.key


def _no_node(reason: str, remedy: str, pod: PodSettings) -> DoctorCheck:
    """Report a missing node as wrong, or as unknown if an autoscaler may add one."""
    if AUTOSCALER_ANNOTATIONS.isdisjoint(pod.annotations):
        return wrong(reason, remedy)
    return unknown(
        f"{reason} The autoscaler may add a node once a pod waits for it.",
        f"If it adds none: {remedy}",
    )


def _labels(node: Json) -> dict[str, str]:
    return get_texts(node, "metadata", "labels")


def _gpu_count(node: Json, resource: str) -> int:
    return int(get_texts(node, "status", "allocatable").get(resource, 0))


def _driver_version(node: Json) -> int:
    """Return the major version of a node's driver; 0 if it is unknown."""
    majors = [_labels(node).get(label, "").partition(".")[0] for label in DRIVER_LABELS]
    return next((int(major) for major in majors if major.isdecimal()), 0)
