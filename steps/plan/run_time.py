"""The time of a run, by earlier runs or by the figure of one image, and its budget."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.execution import Price, find_price, find_price_or_highest, normalize_gpu
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.resolve import ResolvedModel
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.runs.attempts import Terms, budget_error, read_attempts, sum_charged
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.registry import READERS, iter_successful, read_entries
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.shard import has_missing_parts
from imagekiln.steps.runs.stats import Expectation, RunRate, describe_passes
from imagekiln.steps.runtime.figures import format_device_hours, format_duration, pluralize
from imagekiln.steps.storage import open_folder, open_store
from imagekiln.steps.storage.store import Store

MAX_EARLIER_RUNS = 10
MIN_FIRM_IMAGES = 100  # a budget refuses no job by a rate of fewer images
DEVICES_WITHOUT_GPU_NAME = ("cpu", "mps")
SECONDS_PER_HOUR = 3600
HOW_TO_MEASURE = "run `imagekiln tune JOB` on its GPU or CPU, or set shard.seconds_per_image"


@dataclass(frozen=True, slots=True)
class RunTime:
    """The time to generate images, without starting pods.

    Loading the model counts if earlier runs were measured. `device` is the GPU that `source`
    measured. `shards` is the most GPUs that can work at once. By a time that is not `is_firm`, no
    budget refuses a job.
    """

    gpu_hours: float
    source: str
    shards: int
    is_measured: bool = True
    device: str | None = None
    is_firm: bool = True

    def usable_gpus(self, gpus: int) -> int:
        """The number of GPUs that have work, of those given."""
        return max(1, min(gpus, self.shards))

    def hours_on(self, gpus: int) -> float:
        """The hours by the clock on so many GPUs."""
        return self.gpu_hours / self.usable_gpus(gpus)

    def describe(self, gpus: int) -> str:
        """The time on so many GPUs, in a sentence, with the source of the figure."""
        noun = device_noun(self.device)
        hours = format_hours(self.hours_on(gpus), self.usable_gpus(gpus), noun)
        return f"About {hours} ({format_device_hours(self.gpu_hours, noun)}, {self.source})."


def device_noun(device: str | None) -> str:
    """The noun for a device in figures."""
    return "device" if device == "cpu" else "GPU"


def format_hours(hours: float, gpus: int, noun: str = "GPU") -> str:
    """A time on so many GPUs, such as 3 h 24 min on 16 GPUs at once."""
    duration = format_duration(hours * SECONDS_PER_HOUR)
    return f"{duration} on {pluralize(gpus, noun, f'{noun}s at once')}"


def expect_run_time(
    model: ResolvedModel, draft: PlanDraft, gpu: str | None = None
) -> RunTime | None:
    """The time of a draft, by earlier runs with the model unless the job itself says it.

    With `gpu`, only runs on that GPU count.
    """
    job = model.job
    rates: list[RunRate] = []
    if job.shard.seconds_per_image is None:
        with suppress(KilnError):  # an estimate by other figures is better than none
            rates = _read_alike(job, model.facts.digest)
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
    """The time of a draft by runs on one device; each run weighs as its images do.

    Work scales with pixels and steps, loading with shards.
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


def _read_alike(job: Job, digest: str) -> list[RunRate]:
    """The rates of the latest runs under the output that used the job's model and settings."""
    store = open_store(job.output)
    newest_first = read_entries(job.output)[::-1]
    latest = islice(iter_successful(job.output, newest_first), MAX_EARLIER_RUNS)
    folders = [open_folder(store, entry.run_id) for entry in latest]
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
    """Raise BadInput if the job is expected to exceed its budget.

    A GPU of an unknown name has the highest price, and an unknown time exceeds nothing. Returns by
    how much the budget is exceeded if the estimate is not firm.
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
    """Raise BudgetSpent if a run that lacks images has spent its budget."""
    terms = run.terms
    if run.is_complete or not terms.budget.is_limited:
        return
    excess = terms.find_excess(sum_charged(read_attempts(run.store)))
    if excess is not None and has_missing_parts(run.store, run.plan):
        raise budget_error(run.store.uri, excess)


def make_expectation(time: RunTime | None, terms: Terms) -> Expectation | None:
    """The expected time and cost of a new run, at the price of the GPU that was measured."""
    if time is None:
        return None
    cost = cost_of(time, find_price(terms.price_per_hour, time.device))
    return Expectation(time.gpu_hours, time.source, cost)


def cost_of(time: RunTime | None, price: Price | None) -> float | None:
    """The cost of a time at a price; None if either is unknown."""
    return None if time is None or price is None else time.gpu_hours * price.per_hour
