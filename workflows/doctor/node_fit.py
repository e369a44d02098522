"""Which nodes a pod could run on, and what keeps it off the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.kube_fields import (
    format_amount,
    get_mappings,
    get_quantities,
    get_texts,
    object_name,
)
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.profile import NodeLabel, PodSettings, Toleration

NODES = ResourceKind("api/v1", "nodes")
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Taint:
    """What keeps pods off a node that do not tolerate it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """As kubectl writes it."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, and what it has for pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, Decimal]
    images: frozenset[str]

    def capacity(self, resource: str) -> Decimal:
        """How much of a resource it has for pods."""
        return self.allocatable.get(resource, Decimal(0))


@dataclass(frozen=True, slots=True)
class NodeFit:
    """The nodes that are left; where none is, why."""

    nodes: tuple[Node, ...]
    reason: str | None = None
    remedy: str | None = None


def list_nodes(view: ClusterView) -> tuple[Node, ...]:
    """Every node. Raises Unseen."""
    return tuple(map(_to_node, view.list_objects(NODES)))


def fit_pod(among: Sequence[Node], pod: PodSettings, requests: Mapping[str, Decimal]) -> NodeFit:
    """The nodes with the pod's labels, without a taint that it does not tolerate, and with room for it when empty.

    What a node's own daemons take is not counted, so that the largest pod may wait all the same.
    """
    wanted = [
        *(NodeLabel(key=key, values=(value,)) for key, value in pod.node_selector.items()),
        *pod.labels,
    ]
    left = [node for node in among if all(matches_label(node, label) for label in wanted)]
    if not left:
        return NodeFit(
            (),
            _explain_labels(among, wanted),
            "Label nodes so, or have other labels in a profile of your own.",
        )
    free = tuple(node for node in left if not _untolerated_taints(node, pod.tolerations))
    if not free:
        if resting := [
            node
            for node in left
            if all(map(_is_temporary, _untolerated_taints(node, pod.tolerations)))
        ]:
            taints = sorted(
                {
                    str(taint)
                    for node in resting
                    for taint in _untolerated_taints(node, pod.tolerations)
                }
            )
            says = f"{_name_nodes(resting)} would do, but takes no pods now: taint {_join_texts(taints)}."
            return NodeFit(
                (),
                says,
                "See why: kubectl describe node. One that was cordoned comes back by kubectl uncordon.",
            )
        taints = sorted(
            {str(taint) for node in left for taint in _untolerated_taints(node, pod.tolerations)}
        )
        says = f"{_name_nodes(left)} would do, but the profile does not tolerate taint {_join_texts(taints)}."
        return NodeFit((), says, "Add it to the profile's tolerations, or take the taint away.")
    large = tuple(
        node for node in free if all(node.capacity(key) >= value for key, value in requests.items())
    )
    return (
        NodeFit(large)
        if large
        else NodeFit((), _explain_size(free, requests), "Ask for less in a profile of your own.")
    )


def matches_label(node: Node, label: NodeLabel) -> bool:
    """Whether a node's labels are as asked for."""
    there = node.labels.get(label.key)
    if label.operator in ("Exists", "DoesNotExist"):
        return (there is not None) == (label.operator == "Exists")
    if label.operator in ("In", "NotIn"):
        return (there in label.values) == (label.operator == "In")
    if there is None or not there.lstrip("-").isdecimal():
        return False
    return (
        int(there) > int(label.values[0])
        if label.operator == "Gt"
        else int(there) < int(label.values[0])
    )


def _to_node(made: Json) -> Node:
    taints = (
        Taint(str(each["key"]), str(each.get("value", "")), str(each["effect"]))
        for each in _blocking_taints(made)
    )
    images = [
        image["names"]
        for image in get_mappings(made, "status", "images")
        if isinstance(image.get("names"), list)
    ]
    return Node(
        object_name(made),
        get_texts(made, "metadata", "labels"),
        tuple(taints),
        get_quantities(made, "status", "allocatable"),
        frozenset(
            str(each) for names in images for each in (names if isinstance(names, list) else ())
        ),
    )


def _blocking_taints(made: Json) -> list[Json]:
    return [
        each for each in get_mappings(made, "spec", "taints") if each["effect"] in BLOCKING_EFFECTS
    ]


def _untolerated_taints(node: Node, tolerations: Iterable[Toleration]) -> list[Taint]:
    return [
        taint for taint in node.taints if not any(_tolerates(each, taint) for each in tolerations)
    ]


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.key != taint.key or toleration.effect not in (None, taint.effect):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.value


def _is_temporary(taint: Taint) -> bool:
    """Whether Kubernetes itself set a taint for a while: on a node that is cordoned, new, or not well."""
    return taint.key.startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"))


def _explain_labels(among: Sequence[Node], wanted: Sequence[NodeLabel]) -> str:
    """Each label that none of the nodes has as it is asked for, with the values that are there."""
    unmet = [label for label in wanted if not any(matches_label(node, label) for node in among)]
    if not unmet:
        return f"{_none_has(among)} all of the labels {', '.join(label.key for label in wanted)} as asked for."
    return " ".join(
        f"{_none_has(among)} {_describe_label(label)}: {_describe_values(among, label.key)}."
        for label in unmet
    )


def _describe_label(label: NodeLabel) -> str:
    return f"label {label.key} {label.operator} {', '.join(label.values)}".rstrip()


def _describe_values(among: Sequence[Node], key: str) -> str:
    values = sorted({node.labels[key] for node in among if key in node.labels})
    return f"its values are {_join_texts(values)}" if values else "none has that label"


def _explain_size(among: Sequence[Node], requests: Mapping[str, Decimal]) -> str:
    most = {key: max(node.capacity(key) for node in among) for key in requests}
    short = [key for key, value in requests.items() if value > most[key]]
    if not short:
        return f"{_none_has(among)} all at once: {', '.join(f'{format_amount(k, v)} {k}' for k, v in requests.items())}."
    said = (
        f"{format_amount(key, requests[key])} of {key}, and no node has more than {format_amount(key, most[key])}"
        for key in short
    )
    return f"A pod asks for {'; for '.join(said)}."


def _name_nodes(among: Sequence[Node]) -> str:
    return f"Node {among[0].name}" if len(among) == 1 else f"{len(among)} nodes"


def _none_has(among: Sequence[Node]) -> str:
    return (
        f"Node {among[0].name} does not have"
        if len(among) == 1
        else f"None of {len(among)} nodes has"
    )


def _join_texts(texts: Sequence[str]) -> str:
    return ", ".join(texts[:MAX_SHOWN]) + (
        f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    )
