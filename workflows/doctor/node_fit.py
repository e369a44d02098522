"""Which nodes a pod could run on, and what keeps it off the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.kube_fields import format_amount, get_quantities
from imagekiln.workflows.objects import Json, get_list, get_mappings, get_texts, object_name
from imagekiln.workflows.profiles.profile import NodeLabel, PodSettings, Toleration

NODES = ResourceKind("api/v1", "nodes")
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
# Kubernetes sets taints of these prefixes itself, on a node that is cordoned, new or not healthy.
TEMPORARY_TAINT_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that keeps pods without a toleration off a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """As kubectl writes it: key=value:effect."""
        if not self.value:
            return f"{self.key}:{self.effect}"
        return f"{self.key}={self.value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and what it has for pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, Decimal]
    images: frozenset[str]

    def allocatable_amount(self, resource: str) -> Decimal:
        """How much of a resource the node offers to pods."""
        return self.allocatable.get(resource, Decimal(0))


@dataclass(frozen=True, slots=True)
class NodeFit:
    """The nodes that a pod fits on; where there are none, the reason and the remedy."""

    nodes: tuple[Node, ...]
    reason: str | None = None
    remedy: str | None = None


def list_nodes(view: ClusterView) -> tuple[Node, ...]:
    """Every node of the cluster. Raises Unreadable."""
    manifests = view.list_objects(NODES)
    return tuple(_to_node(manifest) for manifest in manifests)


def fit_pod(nodes: Sequence[Node], pod: PodSettings, requests: Mapping[str, Decimal]) -> NodeFit:
    """The nodes with the pod's labels, no taint that it does not tolerate, and enough resources.

    Resources are those of an empty node: a pod that needs nearly all of them may still wait.
    """
    selector = [NodeLabel(key=key, values=(value,)) for key, value in pod.node_selector.items()]
    labels = [*selector, *pod.labels]
    labeled = [node for node in nodes if all(matches_label(node, label) for label in labels)]
    if not labeled:
        remedy = (
            "Label a node: `kubectl label node NODE KEY=VALUE`. "
            "Or ask for other labels in a profile of your own."
        )
        return NodeFit((), _explain_labels(nodes, labels), remedy)

    tolerated = [node for node in labeled if not _untolerated_taints(node, pod.tolerations)]
    if not tolerated:
        return _explain_taints(labeled, pod.tolerations)

    large = [node for node in tolerated if _has_room(node, requests)]
    if not large:
        reason = _explain_size(tolerated, requests)
        return NodeFit((), reason, "Ask for less in a profile of your own, or add a larger node.")
    return NodeFit(tuple(large))


def matches_label(node: Node, label: NodeLabel) -> bool:
    """Whether a node's labels match, as the scheduler compares them."""
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


def _to_node(manifest: Json) -> Node:
    taints = [
        Taint(str(taint["key"]), str(taint.get("value", "")), str(taint["effect"]))
        for taint in get_mappings(manifest, "spec", "taints")
        if taint["effect"] in BLOCKING_EFFECTS
    ]
    images = get_mappings(manifest, "status", "images")
    return Node(
        name=object_name(manifest),
        labels=get_texts(manifest, "metadata", "labels"),
        taints=tuple(taints),
        allocatable=get_quantities(manifest, "status", "allocatable"),
        images=frozenset(str(name) for image in images for name in get_list(image, "names")),
    )


def _has_room(node: Node, requests: Mapping[str, Decimal]) -> bool:
    """Whether the requests fit on the node while it is empty."""
    return all(node.allocatable_amount(resource) >= amount for resource, amount in requests.items())


def _untolerated_taints(node: Node, tolerations: Iterable[Toleration]) -> list[Taint]:
    return [
        taint
        for taint in node.taints
        if not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.key != taint.key:
        return False
    if toleration.effect not in (None, taint.effect):
        return False
    if toleration.operator == "Exists":
        return True
    return (toleration.value or "") == taint.value


def _explain_taints(nodes: Sequence[Node], tolerations: Sequence[Toleration]) -> NodeFit:
    """Which taints keep the pod off nodes that have its labels; temporary ones come first."""
    taints_by_node = {node.name: _untolerated_taints(node, tolerations) for node in nodes}
    resting = [node for node in nodes if all(map(_is_temporary, taints_by_node[node.name]))]
    example = (resting or nodes)[0].name
    taints = sorted(
        {str(taint) for node in resting or nodes for taint in taints_by_node[node.name]}
    )
    if resting:
        return NodeFit(
            (),
            f"{_name_nodes(resting)} would do, but is not schedulable now: "
            f"taint {_list_texts(taints)}.",
            f"See why: `kubectl describe node {example}`. "
            f"If somebody cordoned it: `kubectl uncordon {example}`.",
        )
    return NodeFit(
        (),
        f"{_name_nodes(nodes)} would do, but the profile does not tolerate "
        f"taint {_list_texts(taints)}.",
        "Add it to the profile's tolerations, or remove it: "
        f"`kubectl taint node {example} {taints[0]}-`.",
    )


def _is_temporary(taint: Taint) -> bool:
    return taint.key.startswith(TEMPORARY_TAINT_PREFIXES)


def _explain_labels(nodes: Sequence[Node], labels: Sequence[NodeLabel]) -> str:
    """The labels that no node matches, with the values that nodes do have."""
    unmatched = [label for label in labels if not _is_matched(label, nodes)]
    if unmatched:
        return " ".join(_explain_label(nodes, label) for label in unmatched)
    keys = ", ".join(label.key for label in labels)
    return f"{_none_has(nodes)} all of the labels {keys} with the values asked for."


def _is_matched(label: NodeLabel, nodes: Sequence[Node]) -> bool:
    return any(matches_label(node, label) for node in nodes)


def _explain_label(nodes: Sequence[Node], label: NodeLabel) -> str:
    requirement = f"{label.key} {label.operator} {', '.join(label.values)}".rstrip()
    values = {node.labels[label.key] for node in nodes if label.key in node.labels}
    actual = "no node has that label"
    if values:
        actual = f"its values are {_list_texts(sorted(values))}"
    return f"{_none_has(nodes)} label {requirement}: {actual}."


def _explain_size(nodes: Sequence[Node], requests: Mapping[str, Decimal]) -> str:
    amounts: list[str] = []
    shortages: list[str] = []
    for resource, amount in requests.items():
        text = f"{format_amount(resource, amount)} of {resource}"
        amounts.append(text)
        largest = max(node.allocatable_amount(resource) for node in nodes)
        if amount > largest:
            most = format_amount(resource, largest)
            shortages.append(f"{text}, and no node has more than {most}")
    if shortages:
        return f"A pod asks for {'; for '.join(shortages)}."
    return f"{_none_has(nodes)} all of these at once: {', '.join(amounts)}."


def _name_nodes(nodes: Sequence[Node]) -> str:
    if len(nodes) == 1:
        return f"Node {nodes[0].name}"
    return f"Each of {len(nodes)} nodes"


def _none_has(nodes: Sequence[Node]) -> str:
    if len(nodes) == 1:
        return f"Node {nodes[0].name} does not have"
    return f"None of {len(nodes)} nodes has"


def _list_texts(texts: Sequence[str]) -> str:
    """The first few of the texts, and how many more there are."""
    listed = ", ".join(texts[:MAX_LISTED])
    more = len(texts) - MAX_LISTED
    if more <= 0:
        return listed
    return f"{listed} and {more} more"
