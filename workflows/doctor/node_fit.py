"""Which nodes a pod could run on, and what keeps it off the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.connection import Json
from imagekiln.workflows.doctor.fields import amount, name, parts, quantities, texts
from imagekiln.workflows.doctor.kubernetes_view import Kind, KubernetesView
from imagekiln.workflows.profile import Label, Pod, Toleration

NODES = Kind("api/v1", "nodes")
KEEPS_OFF = ("NoSchedule", "NoExecute")
MOST_SHOWN = 5


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

    def has(self, resource: str) -> Decimal:
        """How much of a resource it has for pods."""
        return self.allocatable.get(resource, Decimal(0))


@dataclass(frozen=True, slots=True)
class Fit:
    """The nodes that are left; where none is, why."""

    nodes: tuple[Node, ...]
    why: str | None = None
    remedy: str | None = None


def nodes(view: KubernetesView) -> tuple[Node, ...]:
    """Every node. Raises Unseen."""
    return tuple(map(_node, view.find(NODES)))


def fit(among: Sequence[Node], pod: Pod, requests: Mapping[str, Decimal]) -> Fit:
    """The nodes with the pod's labels, without a taint that it does not tolerate, and with room for it when empty.

    What a node's own daemons take is not counted, so that the largest pod may wait all the same.
    """
    wanted = [*(Label(key=key, values=(value,)) for key, value in pod.node_selector.items()), *pod.labels]
    left = [node for node in among if all(meets(node, label) for label in wanted)]
    if not left:
        return Fit((), _no_label(among, wanted), "Label nodes so, or have other labels in a profile of your own.")
    free = tuple(node for node in left if not _kept_off(node, pod.tolerations))
    if not free:
        if resting := [node for node in left if all(map(_passes, _kept_off(node, pod.tolerations)))]:
            taints = sorted({str(taint) for node in resting for taint in _kept_off(node, pod.tolerations)})
            says = f"{_nodes(resting)} would do, but takes no pods now: taint {_shown(taints)}."
            return Fit(
                (), says, "See why: kubectl describe node. One that was cordoned comes back by kubectl uncordon."
            )
        taints = sorted({str(taint) for node in left for taint in _kept_off(node, pod.tolerations)})
        says = f"{_nodes(left)} would do, but the profile does not tolerate taint {_shown(taints)}."
        return Fit((), says, "Add it to the profile's tolerations, or take the taint away.")
    large = tuple(node for node in free if all(node.has(key) >= value for key, value in requests.items()))
    return Fit(large) if large else Fit((), _too_large(free, requests), "Ask for less in a profile of your own.")


def meets(node: Node, label: Label) -> bool:
    """Whether a node's labels are as asked for."""
    there = node.labels.get(label.key)
    if label.operator in ("Exists", "DoesNotExist"):
        return (there is not None) == (label.operator == "Exists")
    if label.operator in ("In", "NotIn"):
        return (there in label.values) == (label.operator == "In")
    if there is None or not there.lstrip("-").isdecimal():
        return False
    return int(there) > int(label.values[0]) if label.operator == "Gt" else int(there) < int(label.values[0])


def _node(made: Json) -> Node:
    taints = (Taint(str(each["key"]), str(each.get("value", "")), str(each["effect"])) for each in _taints(made))
    images = [image["names"] for image in parts(made, "status", "images") if isinstance(image.get("names"), list)]
    return Node(
        name(made),
        texts(made, "metadata", "labels"),
        tuple(taints),
        quantities(made, "status", "allocatable"),
        frozenset(str(each) for names in images for each in (names if isinstance(names, list) else ())),
    )


def _taints(made: Json) -> list[Json]:
    return [each for each in parts(made, "spec", "taints") if each["effect"] in KEEPS_OFF]


def _kept_off(node: Node, tolerations: Iterable[Toleration]) -> list[Taint]:
    return [taint for taint in node.taints if not any(_tolerates(each, taint) for each in tolerations)]


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.key != taint.key or toleration.effect not in (None, taint.effect):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.value


def _passes(taint: Taint) -> bool:
    """Whether Kubernetes itself set a taint for a while: on a node that is cordoned, new, or not well."""
    return taint.key.startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"))


def _no_label(among: Sequence[Node], wanted: Sequence[Label]) -> str:
    """Each label that none of the nodes has as it is asked for, with the values that are there."""
    unmet = [label for label in wanted if not any(meets(node, label) for node in among)]
    if not unmet:
        return f"{_none_has(among)} all of the labels {', '.join(label.key for label in wanted)} as asked for."
    return " ".join(f"{_none_has(among)} {_asked(label)}: {_values(among, label.key)}." for label in unmet)


def _asked(label: Label) -> str:
    return f"label {label.key} {label.operator} {', '.join(label.values)}".rstrip()


def _values(among: Sequence[Node], key: str) -> str:
    values = sorted({node.labels[key] for node in among if key in node.labels})
    return f"its values are {_shown(values)}" if values else "none has that label"


def _too_large(among: Sequence[Node], requests: Mapping[str, Decimal]) -> str:
    most = {key: max(node.has(key) for node in among) for key in requests}
    short = [key for key, value in requests.items() if value > most[key]]
    if not short:
        return f"{_none_has(among)} all at once: {', '.join(f'{amount(k, v)} {k}' for k, v in requests.items())}."
    said = (
        f"{amount(key, requests[key])} of {key}, and no node has more than {amount(key, most[key])}" for key in short
    )
    return f"A pod asks for {'; for '.join(said)}."


def _nodes(among: Sequence[Node]) -> str:
    return f"Node {among[0].name}" if len(among) == 1 else f"{len(among)} nodes"


def _none_has(among: Sequence[Node]) -> str:
    return f"Node {among[0].name} does not have" if len(among) == 1 else f"None of {len(among)} nodes has"


def _shown(texts: Sequence[str]) -> str:
    return ", ".join(texts[:MOST_SHOWN]) + (f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else "")
