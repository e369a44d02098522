"""Whether there is a node with GPUs for generate, and one for the CPU steps."""

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
# Autoscalers read these from pods; a profile that has one counts on nodes that are not there yet.
AUTOSCALER_ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
)


@doctor_check("gpu-nodes")
def check_gpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node advertises the profile's GPU, and lets its pods in."""
    resource = profile.gpu.resource
    found = fit_generate(list_nodes(view), profile)
    if found.nodes:
        total = sum(int(node.capacity(resource)) for node in found.nodes)
        has = f"{count_noun(len(found.nodes), 'node')} with {total} {resource}"
        return ok(
            f"{has}{_format_products(found.nodes)}.{_sharing_warning(found, resource)}{_retry_warning(found, profile)}"
        )
    return _no_generate_node(found, profile)


@doctor_check("claim-nodes")
def check_claim_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node lets in pods that claim their GPU: which one has it, only the scheduler can tell."""
    found = fit_generate(list_nodes(view), profile)
    return (
        ok(f"{count_noun(len(found.nodes), 'node')} for pods that claim a GPU.")
        if found.nodes
        else _no_generate_node(found, profile)
    )


@doctor_check("cpu-nodes")
def check_cpu_nodes(view: ClusterView, profile: Profile) -> Finding:
    """A node lets plan and aggregate in."""
    nodes, pod = list_nodes(view), profile.steps
    placed = fit_pod(nodes, pod, {})
    found = fit_pod(nodes, pod, pod_resources(pod).requests)
    if found.nodes:
        return ok(f"{count_noun(len(found.nodes), 'node')} for plan and aggregate.")
    remedy = "Add a CPU node; or, where every node has a GPU, set steps: {labels: []} in a profile of your own."
    return _no_node(found.reason, found.remedy if placed.nodes else remedy, pod)


def fit_generate(nodes: Sequence[Node], profile: Profile, *, sized: bool = True) -> NodeFit:
    """The nodes on which generate can run; where there is none, why. Unless `sized`, small ones are among them."""
    gpu = profile.gpu
    with_gpu = [node for node in nodes if gpu.claim or node.capacity(gpu.resource) > 0]
    if not with_gpu:
        return NodeFit((), *_explain_unadvertised(nodes, gpu.resource))
    requests = pod_resources(profile.generate, gpu).requests if sized else {}
    return fit_pod(with_gpu, profile.generate, requests)


def _no_generate_node(found: NodeFit, profile: Profile) -> Finding:
    return _no_node(found.reason, found.remedy, profile.generate)


def _no_node(why: str | None, remedy: str | None, pod: PodSettings) -> Finding:
    says, todo = why or "There is no node.", remedy or "Add one."
    if any(key in pod.annotations for key in AUTOSCALER_ANNOTATIONS):
        return unknown(
            f"{says} The pool may have no nodes until a pod waits.", f"If none come then: {todo}"
        )
    return wrong(says, todo)


def _explain_unadvertised(nodes: Sequence[Node], resource: str) -> tuple[str, str]:
    """No node advertises the resource: why that may be, and what to do."""
    others = sorted(
        {key for node in nodes for key in node.allocatable if "/" in key and node.capacity(key) > 0}
    )
    fits = [name for name in bundled_profiles() if load_profile(name).gpu.resource in others]
    says = f"None of {count_noun(len(nodes), 'node')} advertises {resource}"
    if others:
        hint = f"Use a profile for those, such as {fits[0]}; or: " if fits else ""
        return f"{says}; they advertise {', '.join(others)}.", hint + _install_advice(resource)
    labelled = sum(node.labels.get(PRESENT_LABEL) == "true" for node in nodes)
    if labelled:
        return (
            f"{says}, though label {PRESENT_LABEL} is true on {labelled} of them.",
            "See why its device plugin does not run.",
        )
    return f"{says}.", _install_advice(resource)


def _install_advice(resource: str) -> str:
    if "/mig-" in resource:
        return 'Set up MIG with the strategy "mixed" (workflows/cluster/gpus/mig.yaml).'
    if resource.endswith(".shared"):
        return "Share GPUs by the device plugin (workflows/cluster/gpus/time-slicing.yaml or mps.yaml)."
    if resource.startswith("nvidia.com/"):
        return "Install NVIDIA's GPU Operator, or its device plugin, and add nodes with GPUs."
    return f"Install the device plugin that advertises {resource}."


def _sharing_warning(found: NodeFit, resource: str) -> str:
    """Said where a whole GPU is asked for, and a share of one is what pods get."""
    shared = [
        node for node in found.nodes if node.labels.get(REPLICAS_LABEL, "1") not in ("", "0", "1")
    ]
    if resource != WHOLE_GPU or not shared:
        return ""
    replicas = shared[0].labels[REPLICAS_LABEL]
    where = f"on {count_noun(len(shared), 'node')} {replicas} pods"
    return f" But {where} share each GPU and its memory ({REPLICAS_LABEL} is {replicas})."


def _retry_warning(found: NodeFit, profile: Profile) -> str:
    """Said where a shard could fail on every node, and would then be forbidden all of them."""
    retries, nodes = profile.retries, len(found.nodes)
    grows = any(key in profile.generate.annotations for key in AUTOSCALER_ANNOTATIONS)
    if not retries.elsewhere or nodes > retries.limit or grows:
        return ""
    where = "it" if nodes == 1 else f"all {nodes}"
    return (
        f" But retries.elsewhere is set, so a shard that fails on {where} waits for a further node."
    )


def _format_products(nodes: Sequence[Node]) -> str:
    products = sorted(
        {node.labels[PRODUCT_LABEL] for node in nodes if PRODUCT_LABEL in node.labels}
    )
    return f" ({', '.join(products)})" if products else ""
