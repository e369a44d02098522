"""Which nodes the pods of generate fit on, and why none has the profile's GPU."""

from collections.abc import Sequence

from imagekiln.workflows.doctor.node_fit import Node, NodeFit, fit_pod
from imagekiln.workflows.doctor.pod_requests import pod_resources
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.profiles.profile import Profile

PRESENT_LABEL = "nvidia.com/gpu.present"
GPU_OPERATOR_ADVICE = (
    "Install the NVIDIA GPU Operator, or NVIDIA's device plugin, and add nodes with GPUs: "
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html"
)


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
