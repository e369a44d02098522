"""What finished runs took, by which the next run of the same job is estimated."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from imagekiln.steps.errors import BadInput, KilnError, StorageRefused
from imagekiln.steps.job.execution import normalize_gpu
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.registry import READERS, RunEntry, iter_successful, read_entries
from imagekiln.steps.runs.stats import RunRate, describe_passes
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_folder, open_store
from imagekiln.steps.storage.store import Store

MAX_EARLIER_RUNS = 40  # which may all be nights of a few images, or of none
ENOUGH_IMAGES = 256  # for a rate: older runs are not looked at
MIN_FIRM_IMAGES = 100  # by a rate of fewer, no job is refused
MIN_RATIO_SPREAD = 0.5  # from 0, where all runs have as many images a shard, to 1
DEVICES_WITHOUT_GPU_NAME = ("cpu", "mps")


@dataclass(frozen=True, slots=True)
class EarlierRate:
    """What several runs on one device took together, so that each weighs as its images do.

    `is_other_job`: they are of jobs of other names. `is_other_gpu`: the job's GPU is another.
    """

    runs: tuple[RunRate, ...]
    is_other_job: bool = False
    is_other_gpu: bool = False

    @property
    def device(self) -> str:
        """What the runs drew on."""
        return self.runs[0].device

    @property
    def images(self) -> int:
        """The images that were drawn."""
        return sum(run.images for run in self.runs)

    @property
    def is_firm(self) -> bool:
        """Whether it rests on enough images, and on the job's GPU, to refuse a job by it."""
        return self.images >= MIN_FIRM_IMAGES and not self.is_other_gpu

    @property
    def source(self) -> str:
        """Where an estimate by these runs is from."""
        is_one = len(self.runs) == 1
        runs = f"run {self.runs[0].run_id}" if is_one else f"{len(self.runs)} runs"
        owner = ""
        if self.is_other_job:
            owner = " of another job" if is_one else " of other jobs"
        images = pluralize(self.images, "image")
        note = ", another GPU than the job's" if self.is_other_gpu else ""
        return f"measured by {runs}{owner}, {images}, on {self.device}{note}"

    def gpu_hours(self, work: float, shards: int) -> float:
        """What other work takes: its drawing, and loading and warming up as often as shards."""
        all_work = working = loading = 0.0
        all_shards = 0
        for run in self.runs:
            all_work += run.work
            all_shards += run.shards
            working += run.working_seconds
            loading += run.loading_seconds

        warming = _shard_seconds(self.runs)
        drawing = working - warming * all_shards
        seconds_of_shard = warming + loading / all_shards
        seconds = drawing * work / all_work + seconds_of_shard * shards
        return seconds / 3600


def _shard_seconds(runs: Sequence[RunRate]) -> float:
    """What each shard takes beside loading and its images, such as a first batch that warms up.

    That is the least-squares fit of working seconds to shards and work, weighted by 1/work, so that
    the sum of all runs is met. 0 where the runs are too much alike to tell the two apart.
    """
    work = shards = seconds = squares = products = 0.0
    for run in runs:
        work += run.work
        shards += run.shards
        seconds += run.working_seconds
        shards_per_work = run.shards / run.work
        squares += run.shards * shards_per_work
        products += run.working_seconds * shards_per_work
    spread = squares * work - shards**2
    if spread < MIN_RATIO_SPREAD * squares * work:
        return 0.0
    fitted = (products * work - shards * seconds) / spread
    return fitted if 0 < fitted * shards < seconds else 0.0


def find_earlier_rate(job: Job, digest: str, gpu: str | None = None) -> EarlierRate | None:
    """What the latest runs took that drew with the job's model and settings on its device.

    Of a job of this name, or else of others, and on a GPU of the name `gpu`, or else on another.
    None where there is none under the job's output, or it cannot be read.
    """
    try:
        entries = read_entries(job.output)
        own_entries = [entry for entry in entries if entry.name == job.name]
        other_entries = [entry for entry in entries if entry.name != job.name]
        own = _read_alike(own_entries, job, digest)
        return (
            _pool(own, job, gpu)
            or _pool_others(_read_alike(other_entries, job, digest), job, gpu)
            or _pool_other_gpus(own, job)
        )
    except KilnError:  # an estimate by other figures is better than none
        return None


def _pool(rates: Sequence[RunRate], job: Job, gpu: str | None) -> EarlierRate | None:
    """The newest runs on the device of the newest that is the job's, until they are enough."""
    fitting = [rate for rate in rates if _is_on_device(rate.device, job.device, gpu)]
    chosen: list[RunRate] = []
    images = 0
    for rate in fitting:
        if rate.device == fitting[0].device and images < ENOUGH_IMAGES:
            chosen.append(rate)
            images += rate.images
    return EarlierRate(tuple(chosen)) if chosen else None


def _pool_others(rates: Sequence[RunRate], job: Job, gpu: str | None) -> EarlierRate | None:
    pooled = _pool(rates, job, gpu)
    return None if pooled is None else replace(pooled, is_other_job=True)


def _pool_other_gpus(rates: Sequence[RunRate], job: Job) -> EarlierRate | None:
    on_gpus = [rate for rate in rates if rate.device not in DEVICES_WITHOUT_GPU_NAME]
    pooled = _pool(on_gpus, job, None)
    return None if pooled is None else replace(pooled, is_other_gpu=True)


def _is_on_device(measured: str, device: str, gpu: str | None) -> bool:
    """Whether a job of this `device`, on a GPU of this name if it is known, draws as measured."""
    if device in DEVICES_WITHOUT_GPU_NAME:
        return measured == device
    if gpu is not None:
        return normalize_gpu(measured) == normalize_gpu(gpu)
    return device == "auto" or measured not in DEVICES_WITHOUT_GPU_NAME


def _read_alike(entries: Sequence[RunEntry], job: Job, digest: str) -> list[RunRate]:
    """The rates of the latest entries that drew with the same model and settings, newest first."""
    store = open_store(job.output)
    newest_first = entries[::-1]
    successful = iter_successful(job.output, newest_first)
    latest = list(islice(successful, MAX_EARLIER_RUNS))
    with ThreadPoolExecutor(READERS) as pool:
        rates = pool.map(lambda entry: _read_rate(store, entry), latest)
        earlier = filter(None, rates)
        return [rate for rate in earlier if _is_alike(rate, job, digest)]


def _read_rate(store: Store, entry: RunEntry) -> RunRate | None:
    try:
        return read_head(open_folder(store, entry.run_id)).commit.rate
    except StorageRefused:
        raise
    except BadInput:  # only figures are lost
        return None


def _is_alike(rate: RunRate, job: Job, digest: str) -> bool:
    if rate.digest != digest or rate.dtype != job.model.dtype:
        return False
    if rate.passes != describe_passes(job):
        return False
    return rate.speed == job.speed
