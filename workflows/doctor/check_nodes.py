"""The nodes: whether generate finds one with GPUs, and the CPU steps one without."""

from collections.abc import Sequence

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.node_fit import Node, NodeFit, fit_generate, fit_pod, list_nodes
from imagekiln.workflows.doctor.pod_requests import pod_resources
from imagekiln.workflows.profiles.profile import PodSettings, Profile

PRODUCT_LABEL = "nvidia.com/gpu.product"
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
        return _no_node(fit, profile.generate)
    if profile.gpu.claim:
        return ok(f"{pluralize(len(fit.nodes), 'node')} for pods that claim a GPU.")
    resource = profile.gpu.resource
    total = sum(int(node.allocatable_amount(resource)) for node in fit.nodes)
    nodes = pluralize(len(fit.nodes), "node")
    return ok(f"{nodes} with {total} {resource}{_format_products(fit.nodes)}.")


@doctor_check("cpu-nodes")
def check_cpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node admits the pods of plan and aggregate."""
    pod = profile.steps
    fit = fit_pod(list_nodes(view), pod, pod_resources(pod).requests)
    if fit.nodes:
        return ok(f"{pluralize(len(fit.nodes), 'node')} for plan and aggregate.")
    remedy = f"{fit.remedy} If every node has GPUs, set steps: {{labels: []}} there."
    return _no_node(NodeFit((), fit.reason, remedy), pod)


def _no_node(fit: NodeFit, pod: PodSettings) -> Finding:
    """Report no node as wrong, or as unknown if an autoscaler may add one."""
    if any(annotation in pod.annotations for annotation in AUTOSCALER_ANNOTATIONS):
        return unknown(
            f"{fit.reason} The autoscaler may add a node once a pod waits for it.",
            f"If it adds none: {fit.remedy}",
        )
    return wrong(fit.reason, fit.remedy)


def _format_products(nodes: Sequence[Node]) -> str:
    products = {node.labels[PRODUCT_LABEL] for node in nodes if PRODUCT_LABEL in node.labels}
    return f" ({', '.join(sorted(products))})" if products else ""
