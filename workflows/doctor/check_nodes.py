"""The nodes: whether generate finds one with GPUs, and the CPU steps one without."""

from collections.abc import Sequence

from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.kube_fields import count_noun
from imagekiln.workflows.doctor.node_fit import Node, NodeFit, fit_pod, list_nodes
from imagekiln.workflows.doctor.pod_requests import pod_resources
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.profiles.profile import PodSettings, Profile

WHOLE_GPU = "nvidia.com/gpu"
PRESENT_LABEL = "nvidia.com/gpu.present"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
PRODUCT_LABEL = "nvidia.com/gpu.product"
UNSHARED_REPLICAS = ("", "0", "1")
# Autoscalers read these; the nodes for a profile that has one may not exist yet.
AUTOSCALER_ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
)
GPU_OPERATOR_ADVICE = (
    "Install the NVIDIA GPU Operator, or NVIDIA's device plugin, and add nodes with GPUs: "
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html"
)


@doctor_check("gpu-nodes")
def check_gpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node advertises the profile's GPU, and admits its pods."""
    fit = fit_generate(list_nodes(view), profile)
    if not fit.nodes:
        return _no_node(fit.reason, fit.remedy, profile.generate)
    resource = profile.gpu.resource
    total = sum(int(node.capacity(resource)) for node in fit.nodes)
    return ok(
        f"{count_noun(len(fit.nodes), 'node')} with {total} {resource}"
        f"{_format_products(fit.nodes)}."
        f"{_sharing_warning(fit.nodes, resource)}{_retry_warning(fit.nodes, profile)}"
    )


@doctor_check("claim-nodes")
def check_claim_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node admits pods that claim a GPU; only the scheduler knows which node has a free one."""
    fit = fit_generate(list_nodes(view), profile)
    if not fit.nodes:
        return _no_node(fit.reason, fit.remedy, profile.generate)
    return ok(f"{count_noun(len(fit.nodes), 'node')} for pods that claim a GPU.")


@doctor_check("cpu-nodes")
def check_cpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node admits the pods of plan and aggregate."""
    pod = profile.steps
    nodes = list_nodes(view)
    fit = fit_pod(nodes, pod, pod_resources(pod).requests)
    if fit.nodes:
        return ok(f"{count_noun(len(fit.nodes), 'node')} for plan and aggregate.")

    remedy = fit.remedy
    fits_without_size = fit_pod(nodes, pod, {})
    if not fits_without_size.nodes:
        remedy = (
            "Add a node without GPUs. If every node has one, set steps: {labels: []} in a profile "
            "of your own."
        )
    return _no_node(fit.reason, remedy, pod)


def fit_generate(nodes: Sequence[Node], profile: Profile, *, sized: bool = True) -> NodeFit:
    """The nodes that generate fits on. Without `sized`, also those that are too small."""
    gpu = profile.gpu
    with_gpu = [node for node in nodes if gpu.claim or node.capacity(gpu.resource) > 0]
    if not with_gpu:
        reason, remedy = _explain_unadvertised(nodes, gpu.resource)
        return NodeFit((), reason, remedy)
    requests = pod_resources(profile.generate, gpu).requests if sized else {}
    return fit_pod(with_gpu, profile.generate, requests)


def _no_node(reason: str | None, remedy: str | None, pod: PodSettings) -> Finding:
    """No node for a pod: wrong, or unknown where an autoscaler may add one."""
    reason = reason or "The cluster has no node."
    remedy = remedy or "Add one."
    if _is_autoscaled(pod):
        return unknown(
            f"{reason} The autoscaler may add a node once a pod waits for it.",
            f"If it adds none: {remedy}",
        )
    return wrong(reason, remedy)


def _is_autoscaled(pod: PodSettings) -> bool:
    return any(annotation in pod.annotations for annotation in AUTOSCALER_ANNOTATIONS)


def _explain_unadvertised(nodes: Sequence[Node], resource: str) -> tuple[str, str]:
    """Why no node may advertise the resource, and what to do."""
    reason = f"None of {len(nodes)} nodes advertises {resource}"
    if len(nodes) == 1:
        reason = f"Node {nodes[0].name} does not advertise {resource}"
    others = _advertised_devices(nodes)
    if others:
        remedy = _install_advice(resource)
        profile = _profile_for(others)
        if profile is not None:
            remedy = f"To use those: `--set cluster.profile={profile}`. Or: {remedy}"
        return f"{reason}; advertised instead: {', '.join(others)}.", remedy

    labeled = [node.name for node in nodes if node.labels.get(PRESENT_LABEL) == "true"]
    if labeled:
        return (
            f"{reason}, though label {PRESENT_LABEL} is true on {labeled[0]}.",
            "NVIDIA's device plugin does not run there. Find its pod: "
            f"`kubectl get pods -A --field-selector spec.nodeName={labeled[0]}`.",
        )
    return f"{reason}.", _install_advice(resource)


def _advertised_devices(nodes: Sequence[Node]) -> list[str]:
    """The extended resources that nodes have, such as nvidia.com/mig-1g.10gb."""
    resources = {
        resource
        for node in nodes
        for resource in node.allocatable
        if "/" in resource and node.capacity(resource) > 0
    }
    return sorted(resources)


def _profile_for(resources: Sequence[str]) -> str | None:
    """The first bundled profile whose GPU is among the resources."""
    for name in bundled_profiles():
        if load_profile(name).gpu.resource in resources:
            return name
    return None


def _install_advice(resource: str) -> str:
    if "/mig-" in resource:
        return (
            'Partition GPUs by MIG with the strategy "mixed": run the commands at the top of '
            "workflows/cluster/gpus/mig.yaml."
        )
    if resource.endswith(".shared"):
        return (
            "Share GPUs through the device plugin: run the commands at the top of "
            "workflows/cluster/gpus/time-slicing.yaml (or mps.yaml)."
        )
    if resource.startswith("nvidia.com/"):
        return GPU_OPERATOR_ADVICE
    return f"Install the device plugin that advertises {resource}."


def _format_products(nodes: Sequence[Node]) -> str:
    products = {node.labels[PRODUCT_LABEL] for node in nodes if PRODUCT_LABEL in node.labels}
    return f" ({', '.join(sorted(products))})" if products else ""


def _sharing_warning(nodes: Sequence[Node], resource: str) -> str:
    """A warning where pods ask for a whole GPU and get a share of one."""
    replicas = [node.labels.get(REPLICAS_LABEL, "1") for node in nodes]
    shared = [number for number in replicas if number not in UNSHARED_REPLICAS]
    if resource != WHOLE_GPU or not shared:
        return ""
    return (
        f" But on {count_noun(len(shared), 'node')}, {shared[0]} pods share each GPU and its "
        f"memory ({REPLICAS_LABEL} is {shared[0]})."
    )


def _retry_warning(nodes: Sequence[Node], profile: Profile) -> str:
    """A warning where a shard could fail on every node, and would then have none left."""
    retries = profile.retries
    may_run_out = retries.elsewhere and len(nodes) <= retries.limit
    if not may_run_out or _is_autoscaled(profile.generate):
        return ""
    failed_nodes = "it" if len(nodes) == 1 else f"all {len(nodes)}"
    return (
        f" But retries.elsewhere is set, so a shard that fails on {failed_nodes} waits for "
        "another node."
    )
