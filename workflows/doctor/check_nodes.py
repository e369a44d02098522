"""The nodes: whether generate finds one with GPUs, and the CPU steps one without."""

from collections.abc import Sequence

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.node_fit import Node, fit_generate, fit_pod, list_nodes
from imagekiln.workflows.doctor.pod_requests import pod_resources
from imagekiln.workflows.profiles.profile import PodSettings, Profile

WHOLE_GPU = "nvidia.com/gpu"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
PRODUCT_LABEL = "nvidia.com/gpu.product"
UNSHARED_REPLICAS = ("", "0", "1")
# Autoscalers read these; the nodes for a profile that has one may not exist yet.
AUTOSCALER_ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
)


@doctor_check("gpu-nodes")
def check_gpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node advertises the profile's GPU, and admits its pods."""
    fit = fit_generate(list_nodes(view), profile)
    if not fit.nodes:
        return _no_node(fit.reason, fit.remedy, profile.generate)
    resource = profile.gpu.resource
    total = sum(int(node.allocatable_amount(resource)) for node in fit.nodes)
    return ok(
        f"{pluralize(len(fit.nodes), 'node')} with {total} {resource}"
        f"{_format_products(fit.nodes)}."
        f"{_sharing_warning(fit.nodes, resource)}"
    )


@doctor_check("claim-nodes")
def check_claim_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node admits pods that claim a GPU; only the scheduler knows which node has a free one."""
    fit = fit_generate(list_nodes(view), profile)
    if not fit.nodes:
        return _no_node(fit.reason, fit.remedy, profile.generate)
    return ok(f"{pluralize(len(fit.nodes), 'node')} for pods that claim a GPU.")


@doctor_check("cpu-nodes")
def check_cpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node admits the pods of plan and aggregate."""
    pod = profile.steps
    nodes = list_nodes(view)
    fit = fit_pod(nodes, pod, pod_resources(pod).requests)
    if fit.nodes:
        return ok(f"{pluralize(len(fit.nodes), 'node')} for plan and aggregate.")

    remedy = fit.remedy
    fits_without_size = fit_pod(nodes, pod, {})
    if not fits_without_size.nodes:
        remedy = (
            "Add a node without GPUs. If every node has one, set steps: {labels: []} in a profile "
            "of your own."
        )
    return _no_node(fit.reason, remedy, pod)


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
        f" But on {pluralize(len(shared), 'node')}, {shared[0]} pods share each GPU and its "
        f"memory ({REPLICAS_LABEL} is {shared[0]})."
    )
