"""The job's model, as this machine finds it, and the GPUs that its weights have to fit on."""

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.performance import GIB, require_room
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_object_store import split_remedy
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.doctor.node_fit import fit_generate, list_nodes
from imagekiln.workflows.profiles.profile import Profile

SHARED_SUFFIX = ".shared"  # of a resource whose GPUs pods share; the label has the GPU's name
MIB_PER_GIB = 1024


def read_weights(job: Job) -> int | KilnError | None:
    """Return the bytes of the models' weights; None if unknown, or the error of reading them."""
    try:
        return resolve_model(job).weights_bytes
    except KilnError as error:
        return error


@doctor_check("model")
def check_model(job: Job, weights: int | KilnError | None) -> Finding:
    """The job's models can be found, and fit each other."""
    if not isinstance(weights, KilnError):
        return ok(f"{job.model.id} can be read.")
    says, remedy = split_remedy(weights)
    # Pods may reach more, or have another token.
    if isinstance(weights, TryAgain | Missing) or weights.__cause__ is not None:
        return unknown(says, f"{remedy} Pods may reach it, even if this machine does not.".strip())
    return wrong(says, remedy)


@doctor_check("gpu-memory")
def check_gpu_memory(
    view: ClusterView, job: Job, profile: Profile, weights: int | KilnError | None
) -> Finding:
    """The weights of the job's models fit in the memory of every GPU that a pod may get."""
    nodes = fit_generate(list_nodes(view), profile, sized=False).nodes
    # Of GPU feature discovery, for a GPU or slice of the node.
    label = f"{profile.gpu.resource.removesuffix(SHARED_SUFFIX)}.memory"
    labels = [(node.labels.get(label, ""), node.name) for node in nodes]
    sizes = [(int(mib) / MIB_PER_GIB, name) for mib, name in labels if mib.isdecimal()]
    if not sizes or not isinstance(weights, int):
        return unknown(
            "The size of the weights, or of the GPUs' memory, is not known.",
            "See model, and install GPU feature discovery, or compare them yourself.",
        )
    gib, name = min(sizes)
    try:
        require_room(job, weights, gib, f"a GPU of node {name}")
    except BadInput as error:
        return wrong(*split_remedy(error))
    return ok(f"The weights take {weights / GIB:.1f} GiB, and the smallest GPU has {gib:.1f} GiB.")
