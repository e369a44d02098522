"""The container images: whether nodes have them, and whether a pod failed to pull one."""

from collections.abc import Sequence

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, Unreadable, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_argo import OWN_PODS, PODS
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.node_fit import (
    Node,
    fit_generate,
    fit_pod,
    gpu_nodes_check_name,
    list_nodes,
)
from imagekiln.workflows.objects import get_mapping, get_mappings, object_name
from imagekiln.workflows.profiles.profile import Profile

ARGO_IMAGE = "argoexec"
DEFAULT_REGISTRY = "docker.io"
PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")


@doctor_check("gpu-image")
def check_gpu_image(view: ClusterView, image: str, profile: Profile) -> Finding:
    """A node for generate has the image."""
    nodes = fit_generate(list_nodes(view), profile, sized=False).nodes
    return _check_image(view, image, nodes, gpu_nodes_check_name(profile))


@doctor_check("cpu-image")
def check_cpu_image(view: ClusterView, image: str, profile: Profile) -> Finding:
    """A node for plan and aggregate has the image."""
    nodes = fit_pod(list_nodes(view), profile.steps, {}).nodes
    return _check_image(view, image, nodes, "cpu-nodes")


def full_image_name(image: str) -> str:
    """An image's name as nodes list it: with its registry, and its digest or else its tag."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"{DEFAULT_REGISTRY}/library/{image}"
    elif not ("." in first or ":" in first or first == "localhost"):
        image = f"{DEFAULT_REGISTRY}/{image}"
    path, at, digest = image.partition("@")
    folder, slash, last = path.rpartition("/")
    name, colon, _ = last.partition(":")
    if at:
        return f"{folder}{slash}{name}@{digest}"
    return image if colon else f"{image}:latest"


def lacks_registry(image: str) -> bool:
    """Whether an image's name has no registry, from which nodes could pull it."""
    return full_image_name(image).startswith(f"{DEFAULT_REGISTRY}/library/")


def _check_image(view: ClusterView, image: str, nodes: Sequence[Node], nodes_check: str) -> Finding:
    failed_pull = _find_failed_pull(view, image)
    if failed_pull is not None:
        pod, failed_image = failed_pull
        return wrong(
            f"Pod {pod} cannot pull {failed_image}.",
            f"See why: `kubectl describe pod {pod} -n {view.namespace}`. Check the image's name "
            "and the pull secret.",
        )
    if not nodes:
        return unknown("There is no node to check.", f"See {nodes_check}.")

    full_name = full_image_name(image)
    having = sum(full_name in node.images for node in nodes)
    if having:
        return ok(f"{image} is on {having} of {pluralize(len(nodes), 'node')}.")
    says = f"No node has pulled {image} yet."
    if lacks_registry(image):
        return unknown(
            says,
            "The name has no registry: push the image to yours, and set cluster.gpu_image or "
            "cluster.cpu_image to its name there.",
        )
    return unknown(
        says, "Whether nodes can pull it only a pod can show: watch the workflow's first one start."
    )


def _find_failed_pull(view: ClusterView, image: str) -> tuple[str, str] | None:
    """A pod of the namespace that cannot pull the image or Argo's own, and which of them."""
    try:
        pods = view.list_objects(PODS, OWN_PODS)
    except Unreadable:
        return None
    for pod in pods:
        statuses = [
            *get_mappings(pod, "status", "initContainerStatuses"),
            *get_mappings(pod, "status", "containerStatuses"),
        ]
        for status in statuses:
            pulled = str(status.get("image", ""))
            reason = get_mapping(status, "state", "waiting").get("reason")
            if reason in PULL_FAILURES and (pulled == image or ARGO_IMAGE in pulled):
                return object_name(pod), pulled
    return None
