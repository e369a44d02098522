"""What a job would make and cost, and whether its budget allows that, before anything runs."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import is_lossless
from imagekiln.steps.job.prices import Price, PricePerHour, find_price, find_price_or_highest
from imagekiln.steps.job.user_checks import find_untried_entries
from imagekiln.steps.models.image_defaults import describe_defaults
from imagekiln.steps.models.performance import require_room
from imagekiln.steps.models.resolve import ResolvedModel, resolve_model
from imagekiln.steps.plan.batch_sizes import load_tuning
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.earlier_runs import find_earlier_rate
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.input_files import find_unused_columns, guessed_columns
from imagekiln.steps.plan.rejected_rows import RejectionCause
from imagekiln.steps.plan.rewritten_prompts import rewrite_for_estimate
from imagekiln.steps.plan.run_time import RunTime
from imagekiln.steps.plan.template_rows import read_prompts
from imagekiln.steps.runs.attempts import Terms, budget_error, read_attempts, sum_charged, terms_of
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.plan import parse_plan
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.shard import has_missing_parts
from imagekiln.steps.runs.stats import Expectation
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder

BYTES_PER_GIGABYTE = 1e9
# Of a photograph, at the default quality.
BYTES_PER_PIXEL = {"png": 1.5, "jpeg": 0.3, "webp": 0.1}
LOSSLESS_BYTES_PER_PIXEL = 1.2  # of a lossless WebP


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job would make, and how long it takes.

    `hours` are by the clock, on `gpus` GPUs at once, and `time_source` says where the figures are
    from. These, GPU-hours and cost are None where there is no figure for an image.
    `guessed_columns` are our names of columns that are read in another spelling, `unused_columns`
    are neither read nor carried, and `notes` say what else a person should know of the input.
    `rejection_causes` are the most frequent reasons why rows are rejected. `price_source` says
    which price was used, and `is_highest_price` that it is the highest of the table, since that has
    none for the GPU or the GPU is not known: the cost is at most that.
    `over_budget` says by how much the job's budget is exceeded, if it is, `is_firm` whether the job
    is refused for that, and `device` on which device the time was measured, or which the job sets.
    `made_prompts` says how many prompts templates make, and of what, `prompts_to_rewrite` how many
    a language model rewrites first, which is in no other figure, and `planned_run` that the run
    which the job or its date names is planned already. `stored_size`, in pixels, is that of an
    image of the job's default size after its passes; None without passes. `defaults` says with how
    many steps and which guidance a row is drawn that states none, and where that is from.
    `weights_bytes` is what the weights of its models take on a GPU, if that is known.
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
    gpu_hours: float | None = None
    cost: float | None = None
    price_per_hour: float | None = None
    hours: float | None = None
    gpus: int | None = None
    time_source: str | None = None
    is_measured: bool = False
    guessed_columns: dict[str, str] = field(default_factory=dict)
    unused_columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    price_source: str | None = None
    over_budget: str | None = None
    rejection_causes: tuple[RejectionCause, ...] = ()
    device: str | None = None
    made_prompts: str | None = None
    is_highest_price: bool = False
    is_firm: bool = True
    prompts_to_rewrite: int = 0
    planned_run: str | None = None
    stored_size: tuple[int, int] | None = None
    defaults: str = ""
    weights_bytes: int | None = None


def estimate(
    job: Job,
    price_per_hour: PricePerHour | None = None,
    gpus_per_pod: int = 1,
    *,
    gpu: str | None = None,
    gpu_memory: float | None = None,
) -> Estimate:
    """Work out the plan without writing it. Raises what planning raises, except for the budget.

    A price goes before the job's own. There are as many pods as the job's parallelism, on GPUs of
    the name `gpu`, with `gpu_memory` GiB, as far as that is known.
    """
    find_untried_entries(job)  # one that can be tried and is wrong is refused
    terms = terms_of(job)
    if price_per_hour is not None:
        terms = replace(terms, price_per_hour=price_per_hour)
    with temporary_folder("imagekiln-estimate-") as folder:
        scratch = Path(folder)
        model = resolve_model(job)
        require_room(job, model.weights_bytes, gpu_memory)
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
            counts = draft.counts
            shards = draft.sharding.shard_images
            part = draft.sharding.part_images
            time = expect_run_time(model, draft, gpu)
            device = gpu or (None if time is None else time.device)
            price = find_price_or_highest(terms.price_per_hour, device)
            counted = Estimate(
                rows=draft.input.rows,
                rejected_rows=counts.rejected_rows,
                duplicate_images=counts.duplicate_images,
                existing_images=counts.existing_images,
                truncated_prompts=counts.truncated_prompts,
                images=counts.images,
                shards=len(shards),
                parts=sum(-(-images // part) for images in shards),
                gigabytes=_estimate_bytes(draft, job) / BYTES_PER_GIGABYTE,
                price_per_hour=None if price is None else price.per_hour,
                price_source=None if price is None else price.source,
                is_highest_price=price is not None and price.is_highest,
                stored_size=draft.sizes.final(draft.default_size) if job.passes else None,
                guessed_columns=guessed_columns(job, files),
                unused_columns=find_unused_columns(files),
                notes=draft.notes,
                made_prompts=files[0].made_prompts,
                prompts_to_rewrite=rewritten.missing,
                rejection_causes=draft.rejection_causes,
                defaults=describe_defaults(job, model.facts),
                device="cpu" if job.device == "cpu" else None,
                planned_run=_describe_named_plan(job),
                weights_bytes=model.weights_bytes,
            )
            gpus = job.cluster.parallelism * gpus_per_pod
            return _add_time(counted, time, gpus, _cost_of(time, price), terms)


def _describe_named_plan(job: Job) -> str | None:
    """A sentence if the run that a job names is planned, so that nothing new will be.

    None if it is not, or cannot be read here.
    """
    if job.run_id is None:
        return None
    uri = f"{job.output.rstrip('/')}/{job.run_id}"
    with suppress(KilnError):
        plan = parse_plan(open_store(uri).read(PLAN_KEY), uri)
        return (
            f"{uri}: is planned already, with {pluralize(plan.counts.images, 'image')}. The job "
            "goes by that plan, and this is what a new one would be."
        )
    return None


def _estimate_bytes(draft: PlanDraft, job: Job) -> float:
    """The bytes of the images of a draft that are stored, as far as they can be estimated."""
    pixels = 0
    for group in draft.catalog.groups:
        width, height = draft.sizes.final((group.width, group.height))
        pixels += group.images * width * height
    if job.keep is not None and job.keep.losers == "drop":
        pixels //= job.candidates
    if is_lossless(job.encoding) and job.encoding.kind != "png":
        return pixels * LOSSLESS_BYTES_PER_PIXEL
    return pixels * BYTES_PER_PIXEL[job.encoding.kind]


def _add_time(
    counted: Estimate, time: RunTime | None, gpus: int, cost: float | None, terms: Terms
) -> Estimate:
    if time is None:
        return counted
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


def _cost_of(time: RunTime | None, price: Price | None) -> float | None:
    return None if time is None or price is None else time.gpu_hours * price.per_hour


def expect_run_time(
    model: ResolvedModel, draft: PlanDraft, gpu: str | None = None
) -> RunTime | None:
    """How long the draft takes: by earlier runs of the job, unless the job itself says so.

    Runs on another GPU than `gpu`, if that is known, count only where nothing else does.
    """
    job = model.job
    if job.shard.seconds_per_image is not None:
        return draft.time
    rate = find_earlier_rate(job, model.facts.digest, gpu)
    if rate is None or (rate.is_other_gpu and draft.time is not None):
        return draft.time
    shards = len(draft.sharding.shard_images)
    return RunTime(
        rate.gpu_hours(draft.work, shards),
        rate.source,
        shards,
        device=rate.device,
        is_firm=rate.is_firm,
    )


def require_within_budget(job: Job, time: RunTime | None, terms: Terms) -> str | None:
    """Raise BadInput where the job is expected to exceed its budget.

    Where the GPU is unknown, it has the highest price. An unknown time exceeds nothing. Where the
    estimate rests on too little to refuse the job by it, by how much it exceeds the budget.
    """
    if time is None or not terms.budget.is_limited:
        return None
    price = find_price_or_highest(terms.price_per_hour, time.device)
    cost = _cost_of(time, price)
    excess = terms.find_estimated_excess(time.gpu_hours, cost)
    if excess is not None and time.is_firm:
        raise BadInput(
            f"job {job.name}: exceeds its budget by the estimate: {excess} ({time.source}). Raise "
            "`budget`, or ask for fewer images or steps."
        )
    return excess


def require_budget_left(run: Run) -> None:
    """Raise BudgetSpent if a run that lacks images has spent its budget."""
    terms = run.terms
    if run.is_complete or not terms.budget.is_limited:
        return
    excess = terms.find_excess(sum_charged(read_attempts(run.store)))
    if excess is not None and has_missing_parts(run.store, run.plan):
        raise budget_error(run.store.uri, excess)


def make_expectation(time: RunTime | None, terms: Terms) -> Expectation | None:
    """How long a new run is expected to take, if that is known.

    The price is that of the GPU that the time was measured on; of the only one, if it is unknown.
    """
    if time is None:
        return None
    price = find_price(terms.price_per_hour, time.device)
    return Expectation(time.gpu_hours, time.source, _cost_of(time, price))
