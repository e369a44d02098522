"""Which nodes a pod could run on, and what keeps it off the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.pod_requests import format_amount, get_quantities, pod_resources
from imagekiln.workflows.objects import Json, get_list, get_mappings, get_texts, object_name
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.profiles.profile import NodeLabel, PodSettings, Profile, Toleration

NODES = ResourceKind("api/v1", "nodes")
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
# Kubernetes sets taints of these prefixes itself, on a node that is cordoned, new or not healthy.
TEMPORARY_TAINT_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
MAX_LISTED = 5
PRESENT_LABEL = "nvidia.com/gpu.present"
GPU_OPERATOR_ADVICE = (
    "Install the NVIDIA GPU Operator, or NVIDIA's device plugin, and add nodes with GPUs: "
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html"
)


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


def fit_generate(nodes: Sequence[Node], profile: Profile, *, sized: bool = True) -> NodeFit:
    """The nodes that generate fits on. Without `sized`, also those that are too small."""
    gpu = profile.gpu
    with_gpu = [node for node in nodes if gpu.claim or node.allocatable_amount(gpu.resource) > 0]
    if not with_gpu:
        reason, remedy = _explain_unadvertised(nodes, gpu.resource)
        return NodeFit((), reason, remedy)
    requests = pod_resources(profile.generate, gpu).requests if sized else {}
    return fit_pod(with_gpu, profile.generate, requests)


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
        if "/" in resource and node.allocatable_amount(resource) > 0
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
            "cluster/gpus/mig.yaml, which `imagekiln manifests cluster` writes."
        )
    if resource.startswith("nvidia.com/"):
        return GPU_OPERATOR_ADVICE
    return f"Install the device plugin that advertises {resource}."


def gpu_nodes_check_name(profile: Profile) -> str:
    """The name of the check that says why no node is fit for generate."""
    return "claim-nodes" if profile.gpu.claim else "gpu-nodes"


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
