"""What pods download where their profile keeps no model files, and whether their disk holds it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.download_size import download_bytes, language_model_bytes
from imagekiln.steps.models.facts import is_hub_id
from imagekiln.steps.models.pass_models import iter_pass_jobs
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.profiles.loader import BASE_PROFILE
from imagekiln.workflows.profiles.profile import Profile

GB = 10**9
GIB = 2**30
SCRATCH_GIB = 2  # beside the model, of `disk`: compiled code, and what is being written
CACHED_PROFILE = "cached-claim"
CLAIM_MANIFEST = "cluster/gpus/models-claim.yaml (of `imagekiln manifests cluster`)"


@dataclass(frozen=True, slots=True)
class ModelDownload:
    """What each of so many pods at once downloads from the hub, and its bytes if they are known.

    `model` names several as one: those that draw the same images.
    """

    model: str
    size: int | None
    pods: int
    is_for_rewriting: bool = False


def list_downloads(job: Job, profile: Profile, *, sizes: bool = True) -> list[ModelDownload]:
    """What pods of the job download where the profile keeps no models.

    With `sizes`, the hub is asked how large they are.
    """
    if profile.cache is not None:
        return []
    downloads = []
    drawing = [model for model in _drawing_models(job) if is_hub_id(model.id)]
    if drawing:
        names = " with ".join(model.id for model in drawing)
        size = _total_bytes(drawing) if sizes else None
        downloads.append(ModelDownload(names, size, job.cluster.parallelism))
    writer = None if job.rewrite is None else job.rewrite.model
    if writer is not None and is_hub_id(writer.id):
        size = language_model_bytes(writer) if sizes else None
        downloads.append(ModelDownload(writer.id, size, 1, is_for_rewriting=True))
    return downloads


def _drawing_models(job: Job) -> list[ModelSettings]:
    """The diffusion models that a pod holds: the job's own, and those of passes, each once."""
    models = [job.model, *(pass_job.model for _, pass_job in iter_pass_jobs(job))]
    distinct: dict[tuple[str, str | None, str | None], ModelSettings] = {}
    for model in models:
        distinct.setdefault((model.id, model.revision, model.variant), model)
    return [*distinct.values()]


def _total_bytes(models: Sequence[ModelSettings]) -> int | None:
    """The size of all of them; None where that of one is not known here."""
    sizes = [download_bytes(model) for model in models]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def describe_download(job: Job, download: ModelDownload) -> str:
    """What the pods of a job download, in a sentence, and what to do."""
    size = "" if download.size is None else f", {download.size / GB:.1f} GB each"
    if download.is_for_rewriting:
        told = f"The pod that rewrites prompts downloads {download.model} in every workflow{size}."
    else:
        pods = pluralize(download.pods, "pod")
        told = f"Every pod downloads {download.model} again{size}, {pods} at once."
    return f"{told} To download it once: {suggest_cache(job)}."


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


def explain_small_disk(
    job: Job, profile: Profile, download: ModelDownload
) -> tuple[str, str] | None:
    """That a pod's disk is too small for a model, and the remedy; None if not, as far as known."""
    disk = profile.generate.disk
    if disk is None or download.size is None:
        return None
    need = download.size / GIB + SCRATCH_GIB
    if need <= disk:
        return None
    says = (
        f"{download.model} is {download.size / GB:.1f} GB, and profile {profile.name} gives a pod "
        f"{disk:g} GiB of disk."
    )
    remedy = (
        f"Keep the model in a volume: {suggest_cache(job)}. "
        f"Or set `generate: {{disk: {ceil(need)}}}` in a profile of your own."
    )
    return says, remedy


def check_downloads(job: Job, profile: Profile) -> list[str]:
    """What the job's pods download, a sentence for each model. Asks the hub for sizes.

    Raises BadInput where a model does not fit on the disk of a pod.
    """
    sentences = []
    for download in list_downloads(job, profile):
        shortage = explain_small_disk(job, profile, download)
        if shortage is not None:
            says, remedy = shortage
            raise BadInput(f"job {job.name}: {says} {remedy}")
        sentences.append(describe_download(job, download))
    return sentences
