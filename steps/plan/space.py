"""The bytes that a job's images take, and whether the disk of a local output has room for them."""

import shutil
from contextlib import suppress
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Encoding, is_lossless
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.runtime.figures import format_bytes
from imagekiln.steps.storage.local import local_path
from imagekiln.steps.storage.uri import is_remote_uri

# Of a photograph, at the default quality.
BYTES_PER_PIXEL = {"png": 1.5, "jpeg": 0.3, "webp": 0.1}
LOSSLESS_BYTES_PER_PIXEL = 1.2  # of a lossless WebP
SMALLEST_SHARE = 0.1  # of these bytes, which flat drawings take


@dataclass(frozen=True, slots=True)
class SpaceNeeded:
    """The bytes that the images take by the estimate, and those that a local output has free."""

    estimated: float
    free: int | None


def estimate_bytes(draft: PlanDraft, job: Job) -> float:
    """The bytes of the images of a draft that are stored, as far as they can be estimated."""
    groups = draft.catalog.groups
    pixels = 0
    for group in groups:
        width, height = draft.sizes.final((group.width, group.height))
        pixels += group.images * width * height
    if job.keep is not None and job.keep.losers == "drop":
        pixels //= job.candidates
    return pixels * _bytes_per_pixel(job.encoding)


def _bytes_per_pixel(encoding: Encoding) -> float:
    if is_lossless(encoding) and encoding.kind != "png":
        return LOSSLESS_BYTES_PER_PIXEL
    return BYTES_PER_PIXEL[encoding.kind]


def find_free_bytes(output: str) -> int | None:
    """The free bytes on the disk of a local output, which need not exist yet.

    None where the output is an object store, or the disk does not tell.
    """
    if is_remote_uri(output):
        return None
    with suppress(OSError, BadInput):  # who writes there finds out, and says why
        path = local_path(output).absolute()
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        usage = shutil.disk_usage(existing)
        return usage.free if usage.total else None  # a file system without a disk, such as /proc
    return None


def require_space(output: str, size: float) -> SpaceNeeded:
    """What images of about `size` bytes need; BadInput where they cannot fit on the output's disk.

    Between these, where they may not fit, the caller says so.
    """
    free = find_free_bytes(output)
    if free is not None and size * SMALLEST_SHARE > free:
        raise BadInput(
            f"output: the images take about {format_bytes(size)}, and {output} has "
            f"{format_bytes(free)} free. Choose another output, such as a larger disk or a bucket, "
            "a smaller encoding (JPEG or WebP), or fewer or smaller images."
        )
    return SpaceNeeded(size, free)
