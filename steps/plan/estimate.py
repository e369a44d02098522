"""What a job would make and cost, before anything runs or is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prices import Price
from imagekiln.steps.models.passes import work_by_defaults
from imagekiln.steps.models.resolve import ResolvedModel, resolve_model
from imagekiln.steps.plan.batch_sizes import load_tuning
from imagekiln.steps.plan.budget import expect_run_time
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.input_changes import describe_named_plan
from imagekiln.steps.plan.input_files import (
    InputFile,
    find_unused_columns,
    guessed_prompt_columns,
)
from imagekiln.steps.plan.rejected_rows import RejectionCause
from imagekiln.steps.plan.rewritten_prompts import rewrite_for_estimate
from imagekiln.steps.plan.run_time import RunTime, default_figure, run_time
from imagekiln.steps.plan.space import estimate_bytes, find_free_bytes
from imagekiln.steps.plan.template_rows import read_prompts
from imagekiln.steps.runs.terms import Terms, terms_of
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.local import temporary_folder

BYTES_PER_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job would make, and how long it takes.

    `hours` are by the clock, on `gpus` GPUs at once, and `time_source` says where the figures are
    from. These, GPU-hours and cost are None where there is no figure for an image.
    `prompt_columns` are the columns that were taken as prompts for their names, `unused_columns`
    those of the input that are neither read nor carried. `rejection_causes` are the most frequent
    reasons why rows are rejected. `free_gigabytes` are those of the disk of a local output.
    `price_source` says which price was used, and `is_highest_price` that it is the highest of the
    table, since that has none for the GPU or the GPU is not known: the cost is at most that.
    `over_budget` says by how much the job's budget is exceeded, if it is, `is_firm` whether the job
    is refused for that, and `device` on which device the time was measured, or which the job sets.
    `made_prompts` says how many prompts templates make, and of what, `prompts_to_rewrite` how many
    a language model rewrites first, which is in no other figure, and `planned_run` that the run
    which the job or its date names is planned already. `stored_size`, in pixels, is that of an
    image of the job's default size after its passes; None without passes.
    """

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
    price_per_hour: float | None = None
    hours: float | None = None
    gpus: int | None = None
    time_source: str | None = None
    is_measured: bool = False
    prompt_columns: tuple[str, ...] = ()
    unused_columns: tuple[str, ...] = ()
    price_source: str | None = None
    over_budget: str | None = None
    rejection_causes: tuple[RejectionCause, ...] = ()
    free_gigabytes: float | None = None
    device: str | None = None
    made_prompts: str | None = None
    is_highest_price: bool = False
    is_firm: bool = True
    prompts_to_rewrite: int = 0
    planned_run: str | None = None
    stored_size: tuple[int, int] | None = None


def estimate(
    job: Job,
    price_per_gpu_hour: float | None = None,
    gpus_per_pod: int = 1,
    *,
    prices: str | None = None,
    gpu: str | None = None,
    spot: bool = False,
) -> Estimate:
    """Work out the plan without writing it. Raises what planning raises, except for the budget.

    A price goes before the job's own, and so do `prices`, the path or URI of a table. There are as
    many pods as the job's parallelism, on GPUs of the name `gpu`, if that is known.
    """
    terms = _terms_with(job, price_per_gpu_hour, prices)
    with temporary_folder("imagekiln-estimate-") as folder:
        scratch = Path(folder)
        model = _resolve_model(job, scratch)
        rewritten = rewrite_for_estimate(job, read_prompts(job, scratch))
        files = rewritten.files
        inputs = PlanInputs(
            job=model.job,
            model=model,
            files=files,
            tuning=load_tuning(job, model.facts, files),
            existing_runs=successful_runs(job),
        )
        with make_draft(inputs, scratch) as draft:
            gpus = job.cluster.parallelism * gpus_per_pod
            free = find_free_bytes(job.output)
            counted = replace(
                _count(draft, job),
                prompt_columns=guessed_prompt_columns(job, files),
                unused_columns=find_unused_columns(files),
                made_prompts=files[0].made_prompts,
                prompts_to_rewrite=rewritten.missing,
                rejection_causes=draft.rejection_causes,
                free_gigabytes=None if free is None else free / BYTES_PER_GIGABYTE,
                device="cpu" if job.device == "cpu" else None,
                planned_run=describe_named_plan(job),
            )
            time = expect_run_time(model, draft, gpu)
            device = gpu or (None if time is None else time.device)
            price = terms.all_prices.find_or_highest(device, spot=spot)
            return _add_time(counted, time, gpus, price, terms)


def _resolve_model(job: Job, scratch: Path) -> ResolvedModel:
    """The job's model. Where its hub is away, what the input says without it is reported too."""
    try:
        return resolve_model(job)
    except TryAgain as error:
        files = read_prompts(job, scratch)
        raise TryAgain(f"{error} {_describe_input(job, files)}") from error


def _describe_input(job: Job, files: Sequence[InputFile]) -> str:
    """What is known of a job without its model, as sentences."""
    rows = sum(file.rows for file in files)
    images = rows * job.defaults.images_per_prompt * job.candidates
    known = f"Without the model: {pluralize(rows, 'row')}, by the defaults "
    known += f"{pluralize(images, 'image')}."
    size, figure = default_figure(job)
    if figure is None:
        return known
    time = run_time(figure, images * work_by_defaults(job, size))
    return f"{known} {time.describe(1)}"


def _count(draft: PlanDraft, job: Job) -> Estimate:
    counts = draft.counts
    shards = draft.sharding.shard_images
    part = draft.sharding.part_images
    return Estimate(
        rows=draft.input.rows,
        rejected_rows=counts.rejected_rows,
        duplicate_images=counts.duplicate_images,
        existing_images=counts.existing_images,
        truncated_prompts=counts.truncated_prompts,
        images=counts.images,
        shards=len(shards),
        parts=sum(-(-images // part) for images in shards),
        gigabytes=estimate_bytes(draft, job) / BYTES_PER_GIGABYTE,
        gpu_hours=None,
        cost=None,
        stored_size=draft.sizes.final(draft.default_size) if job.passes else None,
    )


def _terms_with(job: Job, price_per_hour: float | None, prices: str | None) -> Terms:
    """The terms of the job, with one price or another table in place of its own."""
    if price_per_hour is not None:
        return terms_of(job.model_copy(update={"price_per_hour": price_per_hour}))
    if prices is not None:
        return terms_of(job.model_copy(update={"price_per_hour": None, "prices": prices}))
    return terms_of(job)


def _add_time(
    counted: Estimate, time: RunTime | None, gpus: int, price: Price | None, terms: Terms
) -> Estimate:
    if price is not None:
        counted = replace(
            counted,
            price_per_hour=price.per_hour,
            price_source=price.source,
            is_highest_price=price.is_highest,
        )
    if time is None:
        return counted
    cost = None if price is None else time.gpu_hours * price.per_hour
    return replace(
        counted,
        gpu_hours=time.gpu_hours,
        cost=cost,
        hours=time.hours_on(gpus),
        gpus=time.usable_gpus(gpus),
        time_source=time.source,
        is_measured=time.is_measured,
        is_firm=time.is_firm,
        device=time.device or counted.device,
        over_budget=terms.find_estimated_excess(time.gpu_hours, cost),
    )
