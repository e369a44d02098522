"""The job's model, as this machine finds it, and the GPUs that its weights have to fit on."""

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.models.room import GIB, require_room
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_object_store import split_remedy
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.node_fit import Node, fit_generate, list_nodes
from imagekiln.workflows.profiles.profile import Profile

SHARED_SUFFIX = ".shared"  # of a resource whose GPUs pods share; the label has the GPU's name
MIB = 2**20
LABEL_ADVICE = "Install GPU feature discovery, or compare them yourself."


def read_weights(job: Job) -> int | KilnError | None:
    """What the weights of a job's models take; None where that is not known, or why they fail."""
    try:
        return resolve_model(job).weights_bytes
    except KilnError as error:
        return error


@doctor_check("model")
def check_model(job: Job, weights: int | KilnError | None) -> Finding:
    """The job's models can be found, and fit each other."""
    if not isinstance(weights, KilnError):
        size = "" if weights is None else f"; its weights take {weights / GIB:.1f} GiB on a GPU"
        return ok(f"{job.model.id} can be read{size}.")
    says, remedy = split_remedy(weights)
    # What only pods can reach, or have a token for, is not judged here.
    if isinstance(weights, TryAgain | Missing) or weights.__cause__ is not None:
        return unknown(says, f"{remedy} Pods may reach it, even if this machine does not.".strip())
    return wrong(says, remedy)


@doctor_check("gpu-memory")
def check_gpu_memory(
    view: ClusterView, job: Job, profile: Profile, weights: int | KilnError | None
) -> Finding:
    """The weights of the job's models fit in the memory of every GPU that a pod may get."""
    if weights is None or isinstance(weights, KilnError):
        return unknown("The size of the model's weights is not known here.", "See model.")
    nodes = fit_generate(list_nodes(view), profile, sized=False).nodes
    sizes = {node.name: _gpu_bytes(node, profile.gpu.resource) for node in nodes}
    known = {name: size for name, size in sizes.items() if size is not None}
    if not known:
        return unknown("No node has a label with the memory of its GPUs.", LABEL_ADVICE)
    smallest = min(known, key=known.__getitem__)
    try:
        require_room(job, weights, known[smallest], f"a GPU of node {smallest}")
    except BadInput as error:
        says, remedy = split_remedy(error)
        return wrong(says, remedy)
    return ok(
        f"The weights take {weights / GIB:.1f} GiB, and the smallest GPU has "
        f"{known[smallest] / GIB:.1f} GiB."
    )


def _gpu_bytes(node: Node, resource: str) -> int | None:
    """The memory of one GPU or slice of a node, by the label of GPU feature discovery."""
    text = node.labels.get(f"{resource.removesuffix(SHARED_SUFFIX)}.memory", "")
    return int(text) * MIB if text.isdecimal() else None
