"""Whether the nodes have, or could not get, the container images."""

from imagekiln.steps.job.job import Job
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Finding,
    Unreadable,
    doctor_check,
    ok,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.check_argo import PODS
from imagekiln.workflows.doctor.check_gpus import fit_generate
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.kube_fields import (
    count_noun,
    get_mapping,
    get_mappings,
    object_name,
)
from imagekiln.workflows.doctor.node_fit import Node, fit_pod, list_nodes
from imagekiln.workflows.profiles.profile import Profile

ARGO_IMAGE = "argoexec"
DEFAULT_REGISTRY = "docker.io"
PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")


def check_container_images(
    view: ClusterView, job: Job, profile: Profile
) -> tuple[DoctorCheck, DoctorCheck]:
    """The image of the GPU pods, and that of the CPU steps."""
    steps = profile.steps
    return (
        check_gpu_image(view, job.cluster.gpu_image or profile.generate.image, profile),
        check_cpu_image(view, job.cluster.cpu_image or steps.image, profile),
    )


@doctor_check("gpu-image")
def check_gpu_image(view: ClusterView, image: str, profile: Profile) -> Finding:
    """A GPU node has the image."""
    return _check_image(view, image, fit_generate(list_nodes(view), profile, sized=False).nodes)


@doctor_check("cpu-image")
def check_cpu_image(view: ClusterView, image: str, profile: Profile) -> Finding:
    """A CPU node has the image."""
    return _check_image(view, image, fit_pod(list_nodes(view), profile.steps, {}).nodes)


def full_image_name(image: str) -> str:
    """An image's name as nodes list it: with its registry, and its tag."""
    head, slash, _ = image.partition("/")
    if not slash or not ("." in head or ":" in head or head == "localhost"):
        image = f"{DEFAULT_REGISTRY}/{image}" if slash else f"{DEFAULT_REGISTRY}/library/{image}"
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _check_image(view: ClusterView, image: str, nodes: tuple[Node, ...]) -> Finding:
    if failed := _failed_pull(view, image):
        return wrong(
            f"Pod {failed[0]} cannot get {failed[1]}.",
            "See why: kubectl describe it. Check name and pull secret.",
        )
    if not nodes:
        return unknown("There is no node to look at.", "See gpu-nodes and cpu-nodes.")
    there = sum(full_image_name(image) in node.images for node in nodes)
    if there:
        return ok(f"{image} is there on {there} of {count_noun(len(nodes), 'node')}.")
    says = f"The nodes have not pulled {image} yet."
    if full_image_name(image).startswith(f"{DEFAULT_REGISTRY}/library/"):
        return unknown(
            says,
            "Its name has no registry: push it to yours, and name it there by cluster.gpu_image or cpu_image.",
        )
    return unknown(says, "Only a pull shows whether they can: the first pod of it will.")


def _failed_pull(view: ClusterView, image: str) -> tuple[str, str] | None:
    """A pod of the namespace that waits for the image in vain, or for Argo's own; and which."""
    try:
        pods = view.list_objects(PODS, "labelSelector=app.kubernetes.io/part-of=imagekiln")
    except Unreadable:
        return None
    for pod in pods:
        for each in (
            *get_mappings(pod, "status", "initContainerStatuses"),
            *get_mappings(pod, "status", "containerStatuses"),
        ):
            wanted = str(each.get("image", ""))
            ours = wanted == image or ARGO_IMAGE in wanted
            if ours and get_mapping(each, "state", "waiting").get("reason") in PULL_FAILURES:
                return object_name(pod), wanted
    return None
