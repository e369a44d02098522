"""What pods download where their profile keeps no model files, and whether their disk holds it."""

from math import ceil

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.download_size import download_bytes
from imagekiln.steps.models.facts import is_hub_id
from imagekiln.workflows.profiles.loader import BASE_PROFILE
from imagekiln.workflows.profiles.profile import Profile

GB = 10**9
GIB = 2**30
SCRATCH_GIB = 2  # beside the model, of `disk`: compiled code, and what is being written
CACHED_PROFILE = "cached-claim"
CLAIM_MANIFEST = "cluster/gpus/models-claim.yaml (of `imagekiln manifests cluster`)"


def downloads_model(job: Job, profile: Profile) -> bool:
    """Whether each pod of generate downloads the job's model."""
    return profile.cache is None and is_hub_id(job.model.id)


def describe_downloads(job: Job, size: int | None) -> str:
    """What the pods of a job that `downloads_model` download, in a sentence, and what to do."""
    each = "" if size is None else f", {size / GB:.1f} GB each"
    return (
        f"Every pod downloads {job.model.id} again{each}, {job.cluster.parallelism} pods at once. "
        f"To download it once: {suggest_cache(job)}."
    )


def suggest_cache(job: Job) -> str:
    """How a job's pods share one download, as the end of a sentence."""
    name = job.cluster.profile
    claim = f"create the volume of {CLAIM_MANIFEST}"
    if name == BASE_PROFILE:
        return f"{claim} and set cluster.profile to {CACHED_PROFILE}"
    return (
        f"{claim} and add `cache: {{claim: imagekiln-models}}` to a profile of your own, "
        f"`like: {name}`"
    )


def explain_small_disk(job: Job, profile: Profile, size: int) -> tuple[str, str] | None:
    """That a pod's disk is too small for a model of so many bytes, and the remedy; None if not."""
    disk = profile.generate.disk
    need = size / GIB + SCRATCH_GIB
    if disk is None or need <= disk:
        return None
    says = (
        f"{job.model.id} is {size / GB:.1f} GB, and profile {profile.name} gives a pod "
        f"{disk:g} GiB of disk."
    )
    remedy = (
        f"Keep the model in a volume: {suggest_cache(job)}. "
        f"Or set `generate: {{disk: {ceil(need)}}}` in a profile of your own."
    )
    return says, remedy


def check_downloads(job: Job, profile: Profile) -> str | None:
    """What the job's pods download, in a sentence; None if nothing. Asks the hub for its size.

    Raises BadInput where the model does not fit on the disk of a pod.
    """
    if not downloads_model(job, profile):
        return None
    size = download_bytes(job.model)
    shortage = None if size is None else explain_small_disk(job, profile, size)
    if shortage is not None:
        says, remedy = shortage
        raise BadInput(f"job {job.name}: {says} {remedy}")
    return describe_downloads(job, size)
