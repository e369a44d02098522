"""The images, time and cost of a job, before anything runs."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.execution import PricePerHour, find_price_or_highest
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import is_lossless
from imagekiln.steps.job.user_checks import find_untried_entries
from imagekiln.steps.models.facts import describe_defaults
from imagekiln.steps.models.performance import require_room
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.input_files import find_unused_columns, guessed_columns
from imagekiln.steps.plan.rejected_rows import RejectionCause, find_rejection_causes
from imagekiln.steps.plan.rewriting import rewrite_for_estimate
from imagekiln.steps.plan.run_time import RunTime, cost_of, expect_run_time
from imagekiln.steps.plan.sharding import load_tuning
from imagekiln.steps.plan.templates import read_prompts
from imagekiln.steps.runs.attempts import Terms, terms_of
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.plan import parse_plan
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder

BYTES_PER_GIGABYTE = 1e9
# Of a photograph, at the default quality.
BYTES_PER_PIXEL = {"png": 1.5, "jpeg": 0.3, "webp": 0.1}
LOSSLESS_BYTES_PER_PIXEL = 1.2  # of a lossless WebP


@dataclass(frozen=True, slots=True)
class Estimate:
    """The images of a job, their time and their cost.

    `gigabytes` are those of the run, `export_gigabytes` those of its copies in the job's exports.
    `hours` are by the clock, on `gpus` GPUs at once. Times and costs are None if there is no figure
    for an image; `time_source` and `price_source` say where figures are from. `is_highest_price`:
    the GPU or its price is unknown, so that the cost is at most that. `over_budget` says by how
    much the budget is exceeded, and `is_firm` whether that refuses the job. `guessed_columns`
    are our names of columns that are spelled otherwise, `unused_columns` are neither read nor
    carried. `prompts_to_rewrite` counts prompts that a language model rewrites first, which is in
    no other figure. `planned_run` says that the named run is planned already. `stored_size` is that
    of an image of the default size after its passes, in pixels.
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
    export_gigabytes: float
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

    `price_per_hour` goes before the job's own. Pods have GPUs of the name `gpu`, with `gpu_memory`
    GiB, if that is known.
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
            shards = draft.sharding.shard_images
            part = draft.sharding.part_images
            time = expect_run_time(model, draft, gpu)
            device = gpu or (None if time is None else time.device)
            gigabytes = _estimate_gigabytes(draft, job)
            price = find_price_or_highest(terms.price_per_hour, device)
            counted = Estimate(
                rows=draft.input.rows,
                **asdict(draft.catalog.counts),
                shards=len(shards),
                parts=sum(-(-images // part) for images in shards),
                gigabytes=gigabytes,
                export_gigabytes=gigabytes * len(job.export),
                price_per_hour=None if price is None else price.per_hour,
                price_source=None if price is None else price.source,
                is_highest_price=price is not None and price.is_highest,
                stored_size=draft.sizes.final(draft.default_size) if job.passes else None,
                guessed_columns=guessed_columns(job, files),
                unused_columns=find_unused_columns(files),
                notes=draft.notes,
                made_prompts=files[0].made_prompts,
                prompts_to_rewrite=rewritten.missing,
                rejection_causes=find_rejection_causes(files, draft.catalog),
                defaults=describe_defaults(job, model.facts),
                device="cpu" if job.device == "cpu" else None,
                planned_run=_describe_named_plan(job),
                weights_bytes=model.weights_bytes,
            )
            gpus = job.cluster.parallelism * gpus_per_pod
            return _add_time(counted, time, gpus, cost_of(time, price), terms)


def _describe_named_plan(job: Job) -> str | None:
    """A sentence if the run that a job names is planned and can be read."""
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


def _estimate_gigabytes(draft: PlanDraft, job: Job) -> float:
    pixels = 0
    for group in draft.catalog.groups:
        width, height = draft.sizes.final((group.width, group.height))
        pixels += group.images * width * height
    kind = job.encoding.kind
    is_lossless_webp = kind == "webp" and is_lossless(job.encoding)
    per_pixel = LOSSLESS_BYTES_PER_PIXEL if is_lossless_webp else BYTES_PER_PIXEL[kind]
    return pixels // job.candidates * per_pixel / BYTES_PER_GIGABYTE


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
