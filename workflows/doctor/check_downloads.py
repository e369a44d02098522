"""What the pods of a profile without a cache download, and whether their disk holds it."""

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.model_downloads import (
    ModelDownload,
    describe_download,
    explain_small_disk,
)
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.profiles.profile import Profile


@doctor_check("model-cache")
def check_cache_of_downloads(job: Job, profile: Profile, download: ModelDownload) -> Finding:
    """Models are downloaded once, not by every pod. Works without a cache, so it is never wrong."""
    text = describe_download(job, download)
    return ok(f"Profile {profile.name} works without one. But {text[0].lower()}{text[1:]}")


@doctor_check("disk")
def check_disk(job: Job, profile: Profile, download: ModelDownload) -> Finding:
    """The model fits on the disk that a pod gets."""
    disk = profile.generate.disk
    if disk is None:
        return ok("Pods have no limit on /tmp. But a node whose disk is full evicts them.")
    if download.size is None:
        return unknown(
            f"The hub does not tell from here how large {download.model} is.",
            f"It must fit into {disk:g} GiB, with 2 to spare: `disk` of generate in the profile.",
        )
    shortage = explain_small_disk(job, profile, download)
    if shortage is not None:
        return wrong(*shortage)
    return ok(f"{download.model} fits into the {disk:g} GiB of disk that a pod gets.")
