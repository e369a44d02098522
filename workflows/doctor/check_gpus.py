"""Whether there is a node with GPUs for generate, and one for the CPU steps."""

from collections.abc import Sequence

from imagekiln.workflows import gpu_profiles
from imagekiln.workflows.doctor import needs, node_fit
from imagekiln.workflows.doctor.check import Finding, check, ok, unknown, wrong
from imagekiln.workflows.doctor.fields import count
from imagekiln.workflows.doctor.kubernetes_view import KubernetesView
from imagekiln.workflows.doctor.node_fit import Fit, Node
from imagekiln.workflows.profile import Pod, Profile

WHOLE = "nvidia.com/gpu"
PRESENT = "nvidia.com/gpu.present"
REPLICAS = "nvidia.com/gpu.replicas"
PRODUCT = "nvidia.com/gpu.product"
# Autoscalers read these from pods; a profile that has one counts on nodes that are not there yet.
GROWING = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt")


@check("gpu-nodes")
def gpus(view: KubernetesView, profile: Profile) -> Finding:
    """A node advertises the profile's GPU, and lets its pods in."""
    resource = profile.gpu.resource
    found = fitting(node_fit.nodes(view), profile)
    if found.nodes:
        total = sum(int(node.has(resource)) for node in found.nodes)
        has = f"{count(len(found.nodes), 'node')} with {total} {resource}"
        return ok(f"{has}{_products(found.nodes)}.{_shares(found, resource)}{_cornered(found, profile)}")
    return _none(found, profile)


@check("claim-nodes")
def claim_nodes(view: KubernetesView, profile: Profile) -> Finding:
    """A node lets in pods that claim their GPU: which one has it, only the scheduler can tell."""
    found = fitting(node_fit.nodes(view), profile)
    return ok(f"{count(len(found.nodes), 'node')} for pods that claim a GPU.") if found.nodes else _none(found, profile)


@check("cpu-nodes")
def cpus(view: KubernetesView, profile: Profile) -> Finding:
    """A node lets plan and aggregate in."""
    nodes, pod = node_fit.nodes(view), profile.steps
    placed = node_fit.fit(nodes, pod, {})
    found = node_fit.fit(nodes, pod, needs.whole(pod).requests)
    if found.nodes:
        return ok(f"{count(len(found.nodes), 'node')} for plan and aggregate.")
    remedy = "Add a CPU node; or, where every node has a GPU, set steps: {labels: []} in a profile of your own."
    return _missing(found.why, found.remedy if placed.nodes else remedy, pod)


def fitting(nodes: Sequence[Node], profile: Profile, *, sized: bool = True) -> Fit:
    """The nodes on which generate can run; where there is none, why. Unless `sized`, small ones are among them."""
    gpu = profile.gpu
    with_gpu = [node for node in nodes if gpu.claim or node.has(gpu.resource) > 0]
    if not with_gpu:
        return Fit((), *_unadvertised(nodes, gpu.resource))
    requests = needs.whole(profile.generate, gpu).requests if sized else {}
    return node_fit.fit(with_gpu, profile.generate, requests)


def _none(found: Fit, profile: Profile) -> Finding:
    return _missing(found.why, found.remedy, profile.generate)


def _missing(why: str | None, remedy: str | None, pod: Pod) -> Finding:
    says, todo = why or "There is no node.", remedy or "Add one."
    if any(key in pod.annotations for key in GROWING):
        return unknown(f"{says} The pool may have no nodes until a pod waits.", f"If none come then: {todo}")
    return wrong(says, todo)


def _unadvertised(nodes: Sequence[Node], resource: str) -> tuple[str, str]:
    """No node advertises the resource: why that may be, and what to do."""
    others = sorted({key for node in nodes for key in node.allocatable if "/" in key and node.has(key) > 0})
    fits = [name for name in gpu_profiles.bundled() if gpu_profiles.load(name).gpu.resource in others]
    says = f"None of {count(len(nodes), 'node')} advertises {resource}"
    if others:
        hint = f"Use a profile for those, such as {fits[0]}; or: " if fits else ""
        return f"{says}; they advertise {', '.join(others)}.", hint + _maker(resource)
    labelled = sum(node.labels.get(PRESENT) == "true" for node in nodes)
    if labelled:
        return (
            f"{says}, though label {PRESENT} is true on {labelled} of them.",
            "See why its device plugin does not run.",
        )
    return f"{says}.", _maker(resource)


def _maker(resource: str) -> str:
    if "/mig-" in resource:
        return 'Set up MIG with the strategy "mixed" (workflows/cluster/gpus/mig.yaml).'
    if resource.endswith(".shared"):
        return "Share GPUs by the device plugin (workflows/cluster/gpus/time-slicing.yaml or mps.yaml)."
    if resource.startswith("nvidia.com/"):
        return "Install NVIDIA's GPU Operator, or its device plugin, and add nodes with GPUs."
    return f"Install the device plugin that advertises {resource}."


def _shares(found: Fit, resource: str) -> str:
    """Said where a whole GPU is asked for, and a share of one is what pods get."""
    shared = [node for node in found.nodes if node.labels.get(REPLICAS, "1") not in ("", "0", "1")]
    if resource != WHOLE or not shared:
        return ""
    replicas = shared[0].labels[REPLICAS]
    where = f"on {count(len(shared), 'node')} {replicas} pods"
    return f" But {where} share each GPU and its memory ({REPLICAS} is {replicas})."


def _cornered(found: Fit, profile: Profile) -> str:
    """Said where a shard could fail on every node, and would then be forbidden all of them."""
    retries, nodes = profile.retries, len(found.nodes)
    grows = any(key in profile.generate.annotations for key in GROWING)
    if not retries.elsewhere or nodes > retries.limit or grows:
        return ""
    where = "it" if nodes == 1 else f"all {nodes}"
    return f" But retries.elsewhere is set, so a shard that fails on {where} waits for a further node."


def _products(nodes: Sequence[Node]) -> str:
    products = sorted({node.labels[PRODUCT] for node in nodes if PRODUCT in node.labels})
    return f" ({', '.join(products)})" if products else ""
