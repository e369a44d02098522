"""What a job would make and cost, before anything runs or is written."""

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Encoding, is_lossless
from imagekiln.steps.models.facts import weights_digest
from imagekiln.steps.plan.batch_sizes import load_tuning
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.input_files import gather_sources
from imagekiln.steps.plan.sharding import work_per_image

# Of a photograph, at the quality that is the default; flat drawings take a tenth.
BYTES_PER_PIXEL = {"png": 1.5, "jpeg": 0.3, "webp": 0.1}
LOSSLESS_BYTES_PER_PIXEL = 1.2  # a pixel, where WebP keeps every pixel


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job would make. GPU-hours and cost are None where nobody knows what an image takes."""

    rows: int
    rejected_rows: int
    duplicate_images: int
    existing_images: int
    truncated_prompts: int
    images: int
    shards: int
    parts: int
    gigabytes: float
    gpu_hours: float | None
    cost: float | None


def estimate(job: Job, price_per_gpu_hour: float | None = None) -> Estimate:
    """Work out the plan without writing it; a price goes before the job's own. Raises what planning raises."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-estimate-") as folder:
        spool = Path(folder)
        found, tuned = (
            gather_sources(job.prompt_patterns, spool),
            load_tuning(job, lambda: weights_digest(job.model)),
        )
        with closing(PlanDraft(job, found, spool, successful_runs(job), tuned)) as draft:
            return _estimate_draft(
                draft, job.price_per_hour if price_per_gpu_hour is None else price_per_gpu_hour
            )


def _estimate_draft(draft: PlanDraft, price: float | None) -> Estimate:
    counts, hours = draft.counts, _gpu_hours(draft)
    pixels = sum(group.images * group.width * group.height for group in draft.groups)
    part = draft.sharding.part_images
    return Estimate(
        rows=draft.input.rows,
        rejected_rows=counts.rejected_rows,
        duplicate_images=counts.duplicate_images,
        existing_images=counts.existing_images,
        truncated_prompts=counts.truncated_prompts,
        images=counts.images,
        shards=len(draft.sharding.shard_images),
        parts=sum(-(-images // part) for images in draft.sharding.shard_images),
        gigabytes=pixels * _bytes_per_pixel(draft.job.encoding) / 1e9,
        gpu_hours=hours,
        cost=None if hours is None or price is None else hours * price,
    )


def _bytes_per_pixel(encoding: Encoding) -> float:
    small = is_lossless(encoding) and encoding.kind != "png"
    return LOSSLESS_BYTES_PER_PIXEL if small else BYTES_PER_PIXEL[encoding.kind]


def _gpu_hours(draft: PlanDraft) -> float | None:
    if draft.seconds_per_work is None:
        return None
    return (
        draft.seconds_per_work
        * sum(group.images * work_per_image(group) for group in draft.groups)
        / 3600
    )
