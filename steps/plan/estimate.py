"""Estimates of a job's images, time and cost, from earlier runs or measured figures."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.execution import (
    Placement,
    Price,
    PricePerHour,
    find_price,
    find_price_or_highest,
    normalize_gpu,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import is_lossless
from imagekiln.steps.job.user_checks import find_untried_entries
from imagekiln.steps.models.facts import default_image_size, describe_defaults
from imagekiln.steps.models.placement import choose_placement
from imagekiln.steps.models.resolve import ResolvedModel, resolve_model
from imagekiln.steps.plan.catalog import successful_runs
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.input_files import find_unused_columns, guessed_columns
from imagekiln.steps.plan.rejected_rows import RejectionCause, find_rejection_causes
from imagekiln.steps.plan.rewriting import rewrite_input
from imagekiln.steps.plan.sharding import load_tuning
from imagekiln.steps.plan.templates import read_prompts
from imagekiln.steps.runs.attempts import Terms, budget_error, read_attempts, sum_charged, terms_of
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.registry import READERS, iter_successful, read_entries
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.shard import has_missing_parts
from imagekiln.steps.runs.stats import Expectation, RunRate, describe_passes
from imagekiln.steps.runtime.figures import format_device_hours, format_duration, pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.store import Store

MAX_EARLIER_RUNS = 10
MIN_FIRM_IMAGES = 100  # a rate of fewer images is no reason to refuse a job for its budget
DEVICES_WITHOUT_GPU_NAME = ("cpu", "mps")
SECONDS_PER_HOUR = 3600
HOW_TO_MEASURE = "run `imagekiln tune JOB` on its GPU or CPU, or set shard.seconds_per_image"
BYTES_PER_GIGABYTE = 1e9
# For photographs at the default quality.
BYTES_PER_PIXEL = {"png": 1.5, "jpeg": 0.3, "webp": 0.1}
LOSSLESS_BYTES_PER_PIXEL = 1.2  # lossless WebP


@dataclass(frozen=True, slots=True)
class RunTime:
    """The expected time to generate images, without pod startup.

    It includes loading the model if it comes from earlier runs. `device` is the GPU that `source`
    measured. At most `shards` GPUs can work at once. Unless `is_firm`, the time is no reason to
    refuse a job for its budget.
    """

    gpu_hours: float
    source: str
    shards: int
    is_measured: bool = True
    device: str | None = None
    is_firm: bool = True

    def usable_gpus(self, gpus: int) -> int:
        """Return how many of `gpus` GPUs have work."""
        return max(1, min(gpus, self.shards))

    def hours_on(self, gpus: int) -> float:
        """Return the wall-clock hours on `gpus` GPUs."""
        return self.gpu_hours / self.usable_gpus(gpus)

    def describe(self, gpus: int) -> str:
        """Describe the time on `gpus` GPUs and the source of the figure in a sentence."""
        noun = device_noun(self.device)
        hours = format_hours(self.hours_on(gpus), self.usable_gpus(gpus), noun)
        return f"About {hours} ({format_device_hours(self.gpu_hours, noun)}, {self.source})."


def device_noun(device: str | None) -> str:
    """Return the noun for a device: `device` for a CPU, otherwise `GPU`."""
    return "device" if device == "cpu" else "GPU"


def format_hours(hours: float, gpus: int, noun: str = "GPU") -> str:
    """Format a time on `gpus` GPUs, such as `3 h 24 min on 16 GPUs at once`."""
    duration = format_duration(hours * SECONDS_PER_HOUR)
    return f"{duration} on {pluralize(gpus, noun, f'{noun}s at once')}"


def expect_run_time(
    model: ResolvedModel, draft: PlanDraft, gpu: str | None = None
) -> RunTime | None:
    """Estimate the time of a draft from earlier runs with the model, if there are any.

    The job's `shard.seconds_per_image` takes precedence. With `gpu`, only runs on that GPU count.
    Returns None if no figure is known.
    """
    job = model.job
    rates: list[RunRate] = []
    if job.shard.seconds_per_image is None:
        with suppress(KilnError):  # an estimate by other figures is better than none
            rates = _read_matching_rates(job, model.facts.digest)
    rates = [rate for rate in rates if _is_on_device(rate.device, job.device, gpu)]
    if rates:
        return _time_by_runs([rate for rate in rates if rate.device == rates[0].device], draft)
    figure = draft.figure
    if figure is None:
        return None
    return RunTime(
        figure.seconds_per_work * draft.work / SECONDS_PER_HOUR,
        figure.source,
        len(draft.sharding.shard_images),
        is_measured=figure.is_measured,
        device=figure.device,
        is_firm=not model.pass_configurations,  # the time of their steps is unknown
    )


def _time_by_runs(runs: Sequence[RunRate], draft: PlanDraft) -> RunTime:
    """Estimate the time of a draft from runs on one device, weighted by their work.

    Generation scales with pixels and steps, loading with shards.
    """
    device = runs[0].device
    shards = len(draft.sharding.shard_images)
    images = sum(run.images for run in runs)
    per_work = sum(run.working_seconds for run in runs) / sum(run.work for run in runs)
    per_shard = sum(run.loading_seconds for run in runs) / sum(run.shards for run in runs)
    seconds = per_work * draft.work + per_shard * shards
    names = f"run {runs[0].run_id}" if len(runs) == 1 else f"{len(runs)} runs"
    return RunTime(
        seconds / SECONDS_PER_HOUR,
        f"measured by {names}, {pluralize(images, 'image')}, on {device}",
        shards,
        device=device,
        is_firm=images >= MIN_FIRM_IMAGES,
    )


def _is_on_device(measured: str, device: str, gpu: str | None) -> bool:
    if device in DEVICES_WITHOUT_GPU_NAME:
        return measured == device
    if gpu is not None:
        return normalize_gpu(measured) == normalize_gpu(gpu)
    return device == "auto" or measured not in DEVICES_WITHOUT_GPU_NAME


def _read_matching_rates(job: Job, digest: str) -> list[RunRate]:
    """Read the rates of the latest runs under the output with the same model and settings."""
    store = open_store(job.output)
    newest_first = read_entries(job.output)[::-1]
    latest = islice(iter_successful(job.output, newest_first), MAX_EARLIER_RUNS)
    folders = [open_store(store.uri_of(entry.run_id)) for entry in latest]
    with ThreadPoolExecutor(READERS) as pool:
        rates = pool.map(_read_rate, folders)
    settings = (digest, job.model.dtype, describe_passes(job), job.speed)
    return [
        rate
        for rate in rates
        if rate and (rate.digest, rate.dtype, rate.passes, rate.speed) == settings
    ]


def _read_rate(run: Store) -> RunRate | None:
    with suppress(BadInput):  # only figures are lost
        return read_head(run).commit.rate
    return None


def require_within_budget(job: Job, time: RunTime | None, terms: Terms) -> str | None:
    """Raise BadInput if a firm estimate exceeds the job's budget.

    If the estimate is not firm, return a description of the excess instead. An unknown GPU has the
    highest price, and an unknown time never exceeds the budget.
    """
    if time is None or not terms.budget.is_limited:
        return None
    cost = cost_of(time, find_price_or_highest(terms.price_per_hour, time.device))
    excess = terms.find_estimated_excess(time.gpu_hours, cost)
    if excess is not None and time.is_firm:
        raise BadInput(
            f"job {job.name}: exceeds its budget by the estimate: {excess} ({time.source}). Raise "
            "`budget`, or ask for fewer images or steps."
        )
    return excess


def require_budget_left(run: Run) -> None:
    """Raise BudgetSpent if an incomplete run has spent its budget."""
    terms = run.terms
    if run.is_complete or not terms.budget.is_limited:
        return
    excess = terms.find_excess(sum_charged(read_attempts(run.store)))
    if excess is not None and has_missing_parts(run.store, run.plan, range(len(run.plan.shards))):
        raise budget_error(run.store.uri, excess)


def make_expectation(time: RunTime | None, terms: Terms) -> Expectation | None:
    """Return the expected time and cost of a new run, at the price of the measured GPU."""
    if time is None:
        return None
    cost = cost_of(time, find_price(terms.price_per_hour, time.device))
    return Expectation(time.gpu_hours, time.source, cost)


def cost_of(time: RunTime | None, price: Price | None) -> float | None:
    """Return the cost of a run time at a price; None if either is unknown."""
    return None if time is None or price is None else time.gpu_hours * price.per_hour


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of a job's images, time and cost.

    `gigabytes` is the size of the run, `export_gigabytes` the size of its exports. `hours` are
    wall-clock hours on `gpus` GPUs at once. Times and costs are None if no figure is known.
    `time_source` and `price_source` say where figures come from. With `is_highest_price`, the GPU
    or its price is unknown, and the cost is an upper bound. `over_budget` describes the excess over
    the budget. It refuses the job if `is_firm`. `guessed_columns` maps column names in the files to
    the prompt columns that they stand for. `unused_columns` are neither read nor carried.
    `prompts_to_rewrite` counts prompts that a language model still has to rewrite. No other figure
    includes that time. `stored_size` is the size in pixels of an image of the default size after
    its passes. `placement` is None if the GPU's memory is unknown.
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
    stored_size: tuple[int, int] | None = None
    defaults: str = ""
    weights_bytes: int | None = None
    placement: Placement | None = None


def estimate(
    job: Job,
    price_per_hour: PricePerHour | None = None,
    gpus_per_pod: int = 1,
    *,
    gpu: str | None = None,
    gpu_memory: float | None = None,
) -> Estimate:
    """Estimate a job by planning it without writing the plan.

    `price_per_hour` takes precedence over the job's price. `gpu` is the name of the pods' GPUs, and
    `gpu_memory` their memory in GiB. Raises the errors of `make_plan`, except for the budget.
    """
    find_untried_entries(job)  # raises if an entry can be tried and is wrong
    terms = terms_of(job)
    if price_per_hour is not None:
        terms = replace(terms, price_per_hour=price_per_hour)
    with temporary_folder("imagekiln-estimate-") as folder:
        scratch = Path(folder)
        model = resolve_model(job)
        placement = choose_placement(job, model.weights, gpu_memory)
        rewritten = rewrite_input(job, read_prompts(job, scratch))
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
            sizes = model.pass_sizes
            default_size = default_image_size(model.job, model.facts)
            time = expect_run_time(model, draft, gpu)
            device = gpu or (None if time is None else time.device)
            gigabytes = _estimate_gigabytes(draft, job)
            price = find_price_or_highest(terms.price_per_hour, device)
            counted = Estimate(
                rows=inputs.rows,
                **asdict(draft.catalog.counts),
                shards=len(shards),
                parts=sum(-(-images // part) for images in shards),
                gigabytes=gigabytes,
                export_gigabytes=gigabytes * len(job.export),
                price_per_hour=None if price is None else price.per_hour,
                price_source=None if price is None else price.source,
                is_highest_price=price is not None and price.is_highest,
                stored_size=sizes.final(default_size) if job.passes else None,
                guessed_columns=guessed_columns(job, files),
                unused_columns=find_unused_columns(files),
                notes=draft.notes,
                made_prompts=files[0].made_prompts,
                prompts_to_rewrite=rewritten.missing,
                rejection_causes=find_rejection_causes(files, draft.catalog),
                defaults=describe_defaults(job, model.facts),
                device="cpu" if job.device == "cpu" else None,
                weights_bytes=sum(each.total for each in model.weights) or None,
                placement=placement,
            )
            gpus = job.cluster.parallelism * gpus_per_pod
            return _add_time(
                counted,
                time,
                gpus,
                cost_of(time, price),
                terms,
            )


def _estimate_gigabytes(draft: PlanDraft, job: Job) -> float:
    pixels = 0
    for group in draft.catalog.groups:
        width, height = draft.inputs.model.pass_sizes.final((group.width, group.height))
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
