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
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

MAX_EARLIER_RUNS = 40  # a schedule may have made few images in each, or none
ENOUGH_IMAGES = 256  # for a rate: older runs are not read
MIN_FIRM_IMAGES = 100  # a budget refuses no job by a rate of fewer images
DEVICES_WITHOUT_GPU_NAME = ("cpu", "mps")
HOURS_PER_DAY = 24
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
        return self._describe_hours(format_hours(self.hours_on(gpus), self.usable_gpus(gpus), noun))

    def describe_both(self, cluster_gpus: int) -> str:
        """The time on one GPU and on those of a cluster, with the source of the figure."""
        gpus = self.usable_gpus(cluster_gpus)
        hours = self.hours_on(gpus)
        noun = device_noun(self.device)
        return self._describe_hours(format_both(self.gpu_hours, hours, gpus, noun))

    def _describe_hours(self, hours: str) -> str:
        total = format_device_hours(self.gpu_hours, device_noun(self.device))
        return f"About {hours} ({total}, {self.source})."


def device_noun(device: str | None) -> str:
    """The noun for a device in figures."""
    return "device" if device == "cpu" else "GPU"


def format_hours(hours: float, gpus: int, noun: str = "GPU") -> str:
    """The time on so many GPUs, such as 24 min on 16 GPUs at once."""
    return f"{_format_time(hours)} on {pluralize(gpus, noun, f'{noun}s at once')}"


def format_both(gpu_hours: float, hours: float, cluster_gpus: int, noun: str = "GPU") -> str:
    """The time on one GPU, and on those of a cluster if several have work."""
    alone = format_hours(gpu_hours, 1, noun)
    if cluster_gpus == 1:
        return alone
    return (
        f"{alone}, about {_format_time(hours)} on the {cluster_gpus} that a cluster gives at once"
    )


def _format_time(hours: float) -> str:
    days = hours / HOURS_PER_DAY
    return format_duration(hours * SECONDS_PER_HOUR) if days < 3 else f"{days:,.1f} days"


def expect_run_time(
    model: ResolvedModel, draft: PlanDraft, gpu: str | None = None
) -> RunTime | None:
    """The time of a draft, by earlier runs with the model unless the job itself says it.

    Runs on another GPU than `gpu` count only if there is no other figure.
    """
    job = model.job
    by_figure = _time_by_figure(model, draft)
    if job.shard.seconds_per_image is not None:
        return by_figure
    rates: list[RunRate] = []
    with suppress(KilnError):  # an estimate by other figures is better than none
        rates = _read_alike(job, model.facts.digest)
    latest = _choose_latest(rates, job.device, gpu)
    if latest:
        return _time_by_runs(latest, draft)
    on_gpus = [rate for rate in rates if rate.device not in DEVICES_WITHOUT_GPU_NAME]
    latest = _choose_latest(on_gpus, job.device, None)
    if by_figure is None and latest:
        return _time_by_runs(latest, draft, is_other_gpu=True)
    return by_figure


def _time_by_figure(model: ResolvedModel, draft: PlanDraft) -> RunTime | None:
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


def _time_by_runs(runs: list[RunRate], draft: PlanDraft, *, is_other_gpu: bool = False) -> RunTime:
    """The time of a draft by runs on one device; each run weighs as its images do.

    Work scales with pixels and steps, loading with shards.
    """
    device = runs[0].device
    shards = len(draft.sharding.shard_images)
    images = shards_made = 0
    work = working = loading = 0.0
    for run in runs:
        images += run.images
        shards_made += run.shards
        work += run.work
        working += run.working_seconds
        loading += run.loading_seconds
    per_work = working / work
    per_shard = loading / shards_made
    seconds = per_work * draft.work + per_shard * shards
    names = f"run {runs[0].run_id}" if len(runs) == 1 else f"{len(runs)} runs"
    source = f"measured by {names}, {pluralize(images, 'image')}, on {device}"
    if is_other_gpu:
        source += ", another GPU than the job's"
    return RunTime(
        seconds / SECONDS_PER_HOUR,
        source,
        shards,
        device=device,
        is_firm=images >= MIN_FIRM_IMAGES and not is_other_gpu,
    )


def _choose_latest(rates: Sequence[RunRate], device: str, gpu: str | None) -> list[RunRate]:
    """The latest runs on the job's device, all on one, until they have enough images."""
    fitting = [rate for rate in rates if _is_on_device(rate.device, device, gpu)]
    chosen: list[RunRate] = []
    for rate in fitting:
        is_enough = sum(run.images for run in chosen) >= ENOUGH_IMAGES
        if rate.device == fitting[0].device and not is_enough:
            chosen.append(rate)
    return chosen


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
    latest = list(islice(iter_successful(job.output, newest_first), MAX_EARLIER_RUNS))
    with ThreadPoolExecutor(READERS) as pool:
        folders = [open_store(store.uri_of(entry.run_id)) for entry in latest]
        rates = [*pool.map(_read_rate, folders)]
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
    price = find_price_or_highest(terms.price_per_hour, time.device)
    cost = cost_of(time, price)
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
    shards = range(len(run.plan.shards))
    if excess is not None and has_missing_parts(run.store, run.plan, shards):
        raise budget_error(run.store.uri, excess)


def make_expectation(time: RunTime | None, terms: Terms) -> Expectation | None:
    """The expected time and cost of a new run, at the price of the GPU that was measured."""
    if time is None:
        return None
    price = find_price(terms.price_per_hour, time.device)
    return Expectation(time.gpu_hours, time.source, cost_of(time, price))


def cost_of(time: RunTime | None, price: Price | None) -> float | None:
    """The cost of a time at a price; None if either is unknown."""
    return None if time is None or price is None else time.gpu_hours * price.per_hour
