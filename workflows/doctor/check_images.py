"""Whether the nodes have, or could not get, the container images."""

from imagekiln.steps.job import Job
from imagekiln.workflows.doctor import check_gpus, node_fit
from imagekiln.workflows.doctor.check import Check, Finding, Unseen, check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_argo import PODS
from imagekiln.workflows.doctor.fields import count, name, part, parts
from imagekiln.workflows.doctor.kubernetes_view import KubernetesView
from imagekiln.workflows.doctor.node_fit import Node
from imagekiln.workflows.profile import Profile

ARGOS = "argoexec"
HUB = "docker.io"
FAILED = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")


def images(view: KubernetesView, job: Job, profile: Profile) -> tuple[Check, Check]:
    """The image of the GPU pods, and that of the CPU steps."""
    steps = profile.steps
    return (
        gpu_image(view, job.cluster.gpu_image or profile.generate.image, profile),
        cpu_image(view, job.cluster.cpu_image or steps.image, profile),
    )


@check("gpu-image")
def gpu_image(view: KubernetesView, image: str, profile: Profile) -> Finding:
    """A GPU node has the image."""
    return _image(view, image, check_gpus.fitting(node_fit.nodes(view), profile, sized=False).nodes)


@check("cpu-image")
def cpu_image(view: KubernetesView, image: str, profile: Profile) -> Finding:
    """A CPU node has the image."""
    return _image(view, image, node_fit.fit(node_fit.nodes(view), profile.steps, {}).nodes)


def full_name(image: str) -> str:
    """An image's name as nodes list it: with its registry, and its tag."""
    head, slash, _ = image.partition("/")
    if not slash or not ("." in head or ":" in head or head == "localhost"):
        image = f"{HUB}/{image}" if slash else f"{HUB}/library/{image}"
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _image(view: KubernetesView, image: str, nodes: tuple[Node, ...]) -> Finding:
    if failed := _failed(view, image):
        return wrong(
            f"Pod {failed[0]} cannot get {failed[1]}.", "See why: kubectl describe it. Check name and pull secret."
        )
    if not nodes:
        return unknown("There is no node to look at.", "See gpu-nodes and cpu-nodes.")
    there = sum(full_name(image) in node.images for node in nodes)
    if there:
        return ok(f"{image} is there on {there} of {count(len(nodes), 'node')}.")
    says = f"The nodes have not pulled {image} yet."
    if full_name(image).startswith(f"{HUB}/library/"):
        return unknown(
            says, "Its name has no registry: push it to yours, and name it there by cluster.gpu_image or cpu_image."
        )
    return unknown(says, "Only a pull shows whether they can: the first pod of it will.")


def _failed(view: KubernetesView, image: str) -> tuple[str, str] | None:
    """A pod of the namespace that waits for the image in vain, or for Argo's own; and which."""
    try:
        pods = view.find(PODS, "labelSelector=app.kubernetes.io/part-of=imagekiln")
    except Unseen:
        return None
    for pod in pods:
        for each in (*parts(pod, "status", "initContainerStatuses"), *parts(pod, "status", "containerStatuses")):
            wanted = str(each.get("image", ""))
            ours = wanted == image or ARGOS in wanted
            if ours and part(each, "state", "waiting").get("reason") in FAILED:
                return name(pod), wanted
    return None
