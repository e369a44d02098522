"""Nodes that a pod could run on, by their devices, labels, taints and size.

Only Kubernetes' scheduler knows whether one is free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.pod_requests import format_amount, get_quantities, pod_resources
from imagekiln.workflows.objects import Json, get_mappings, get_texts, object_name
from imagekiln.workflows.profiles.profile import NodeLabel, PodSettings, Profile, Toleration

NODES = ResourceKind("api/v1", "nodes")
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
GPU_OPERATOR_ADVICE = (
    "Install the NVIDIA GPU Operator, or NVIDIA's device plugin, and add nodes with GPUs: "
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and what it has for pods. A taint is a key, a value and an effect."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]
    allocatable: Mapping[str, Decimal]

    def allocatable_amount(self, resource: str) -> Decimal:
        """Return how much of a resource the node offers to pods."""
        return self.allocatable.get(resource, Decimal(0))


@dataclass(frozen=True, slots=True)
class NodeFit:
    """The nodes that a pod fits on; without any, the reason and the remedy."""

    nodes: tuple[Node, ...]
    reason: str = ""
    remedy: str = ""


def list_nodes(view: ClusterView) -> tuple[Node, ...]:
    """Return every node of the cluster. Raises Unreadable."""
    return tuple(_to_node(manifest) for manifest in view.list_objects(NODES))


def fit_generate(nodes: Sequence[Node], profile: Profile, *, sized: bool = True) -> NodeFit:
    """Find the nodes for generate. Without `sized`, also those that are too small."""
    gpu = profile.gpu
    with_gpu = [node for node in nodes if gpu.claim or node.allocatable_amount(gpu.resource) > 0]
    if not with_gpu:
        others = sorted({name for node in nodes for name in node.allocatable if "/" in name})
        instead = f"; advertised instead: {', '.join(others)}" if others else ""
        reason = f"{_none_of(nodes)} advertises {gpu.resource}{instead}."
        return NodeFit((), reason, _install_advice(gpu.resource))
    requests = pod_resources(profile.generate, gpu).requests if sized else {}
    return fit_pod(with_gpu, profile.generate, requests)


def fit_pod(nodes: Sequence[Node], pod: PodSettings, requests: Mapping[str, Decimal]) -> NodeFit:
    """Find the nodes with the pod's labels, without other taints, and with enough resources.

    Resources are those of an empty node: a pod that needs nearly all of them may still wait.
    """
    selector = [NodeLabel(key=key, values=(value,)) for key, value in pod.node_selector.items()]
    for label in (*selector, *pod.labels):
        labeled = [node for node in nodes if _matches_label(node, label)]
        if not labeled:
            return _no_label(nodes, label)
        nodes = labeled

    tolerated = [node for node in nodes if not _untolerated_taints(node, pod.tolerations)]
    if not tolerated:
        return _no_toleration(nodes, pod.tolerations)

    for resource, amount in requests.items():
        large = [node for node in tolerated if node.allocatable_amount(resource) >= amount]
        if not large:
            most = max(node.allocatable_amount(resource) for node in tolerated)
            return NodeFit(
                (),
                f"A pod asks for {format_amount(resource, amount)} of {resource}, and no node has "
                f"more than {format_amount(resource, most)}.",
                "Ask for less in a profile of your own, or add a larger node.",
            )
        tolerated = large
    return NodeFit(tuple(tolerated))


def _to_node(manifest: Json) -> Node:
    taints = [
        (str(taint["key"]), str(taint.get("value", "")), str(taint["effect"]))
        for taint in get_mappings(manifest, "spec", "taints")
        if taint["effect"] in BLOCKING_EFFECTS
    ]
    return Node(
        name=object_name(manifest),
        labels=get_texts(manifest, "metadata", "labels"),
        taints=tuple(taints),
        allocatable=get_quantities(manifest, "status", "allocatable"),
    )


def _install_advice(resource: str) -> str:
    if "/mig-" in resource:
        return (
            'Partition GPUs by MIG with the strategy "mixed": run the commands at the top of '
            "cluster/gpus/mig.yaml, which `imagekiln manifests cluster` writes."
        )
    if resource.startswith("nvidia.com/"):
        return GPU_OPERATOR_ADVICE
    return f"Install the device plugin that advertises {resource}."


def _matches_label(node: Node, label: NodeLabel) -> bool:
    """Return whether a node's labels match, as the scheduler compares them."""
    value = node.labels.get(label.key)
    match label.operator:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in label.values
        case "NotIn":
            return value not in label.values

    if value is None or not value.lstrip("-").isdecimal():
        return False
    bound = int(label.values[0])
    return int(value) > bound if label.operator == "Gt" else int(value) < bound


def _no_label(nodes: Sequence[Node], label: NodeLabel) -> NodeFit:
    requirement = f"{label.key} {label.operator} {', '.join(label.values)}".rstrip()
    values = sorted({node.labels[label.key] for node in nodes if label.key in node.labels})
    actual = f"its values are {', '.join(values)}" if values else "no node has that label"
    return NodeFit(
        (),
        f"{_none_of(nodes)} has label {requirement}: {actual}.",
        "Label a node: `kubectl label node NODE KEY=VALUE`. "
        "Or ask for other labels in a profile of your own.",
    )


def _no_toleration(nodes: Sequence[Node], tolerations: Sequence[Toleration]) -> NodeFit:
    key, value, effect = _untolerated_taints(nodes[0], tolerations)[0]
    taint = f"{key}={value}:{effect}" if value else f"{key}:{effect}"
    return NodeFit(
        (),
        f"{_none_of(nodes)} is open to the profile's pods: {nodes[0].name} has taint {taint}.",
        "Add it to the profile's tolerations, or remove it: "
        f"`kubectl taint node {nodes[0].name} {taint}-`. "
        f"A node that is cordoned: `kubectl uncordon {nodes[0].name}`.",
    )


def _untolerated_taints(
    node: Node, tolerations: Iterable[Toleration]
) -> list[tuple[str, str, str]]:
    return [
        taint for taint in node.taints if not any(_tolerates(each, taint) for each in tolerations)
    ]


def _tolerates(toleration: Toleration, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if toleration.key != key or toleration.effect not in (None, effect):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == value


def _none_of(nodes: Sequence[Node]) -> str:
    return "No node" if len(nodes) < 2 else f"None of {len(nodes)} nodes"
