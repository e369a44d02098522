"""What a job would make and cost, before anything runs or is written."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Encoding, is_lossless
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.batch_sizes import load_tuning
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.input_files import read_input_files
from imagekiln.steps.plan.sharding import work_per_image

# Of a photograph, at the default quality; flat drawings take a tenth.
BYTES_PER_PIXEL = {"png": 1.5, "jpeg": 0.3, "webp": 0.1}
LOSSLESS_BYTES_PER_PIXEL = 1.2  # of a lossless WebP


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job would make. GPU hours and cost are None where there is no figure for an image."""

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
    """Work out the plan without writing it. Raises what planning raises.

    A price goes before the job's own.
    """
    model = resolve_model(job)
    price = job.price_per_hour if price_per_gpu_hour is None else price_per_gpu_hour
    with tempfile.TemporaryDirectory(prefix="imagekiln-estimate-") as folder:
        scratch = Path(folder)
        files = read_input_files(job, scratch)
        inputs = PlanInputs(
            job=job,
            model=model,
            files=files,
            tuning=load_tuning(job, model.facts, files),
            existing_runs=successful_runs(job),
        )
        with make_draft(inputs, scratch) as draft:
            return _estimate_draft(draft, job.encoding, price)


def _estimate_draft(draft: PlanDraft, encoding: Encoding, price: float | None) -> Estimate:
    counts = draft.counts
    shards = draft.sharding.shard_images
    part = draft.sharding.part_images
    pixels = sum(group.images * group.width * group.height for group in draft.catalog.groups)
    hours = _gpu_hours(draft)
    return Estimate(
        rows=draft.input.rows,
        rejected_rows=counts.rejected_rows,
        duplicate_images=counts.duplicate_images,
        existing_images=counts.existing_images,
        truncated_prompts=counts.truncated_prompts,
        images=counts.images,
        shards=len(shards),
        parts=sum(-(-images // part) for images in shards),
        gigabytes=pixels * _bytes_per_pixel(encoding) / 1e9,
        gpu_hours=hours,
        cost=None if hours is None or price is None else hours * price,
    )


def _bytes_per_pixel(encoding: Encoding) -> float:
    if is_lossless(encoding) and encoding.kind != "png":
        return LOSSLESS_BYTES_PER_PIXEL
    return BYTES_PER_PIXEL[encoding.kind]


def _gpu_hours(draft: PlanDraft) -> float | None:
    if draft.seconds_per_work is None:
        return None
    work = sum(group.images * work_per_image(group) for group in draft.catalog.groups)
    return draft.seconds_per_work * work / 3600
