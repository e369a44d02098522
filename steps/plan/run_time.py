"""How long a run takes: measured by earlier runs, or by the figure of one image."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prices import normalize_gpu
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.registry import READERS, RunEntry, iter_successful, read_entries
from imagekiln.steps.runs.stats import RunRate, describe_passes
from imagekiln.steps.runtime.figures import format_device_hours, format_duration, pluralize
from imagekiln.steps.storage import open_folder, open_store
from imagekiln.steps.storage.store import Store

HOW_TO_MEASURE = "run `imagekiln tune JOB` on its GPU or CPU, or set shard.seconds_per_image"
HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600
MAX_EARLIER_RUNS = 40  # which may all be nights of a few images, or of none
ENOUGH_IMAGES = 256  # for a rate: older runs are not looked at
MIN_FIRM_IMAGES = 100  # by a rate of fewer, no job is refused
DEVICES_WITHOUT_GPU_NAME = ("cpu", "mps")


@dataclass(frozen=True, slots=True)
class RunTime:
    """How long generating takes, without starting pods and loading the model.

    `source` says where the time of an image is from, and `device` names the GPU that it was
    measured on, if that is known. If an earlier run was measured, loading is included. `shards` is
    the most GPUs that can work at once. `is_firm` is False if the time rests on too little for a
    budget to refuse the job by it.
    """

    gpu_hours: float
    source: str
    shards: int
    is_measured: bool = True
    device: str | None = None
    is_firm: bool = True

    def usable_gpus(self, gpus: int) -> int:
        """How many of so many GPUs have work."""
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
    """What a device of this name is called in figures: a GPU, unless it is known to be none."""
    return "device" if device == "cpu" else "GPU"


def format_hours(hours: float, gpus: int, noun: str = "GPU") -> str:
    """The time on so many GPUs, such as 24 min on 16 GPUs at once; days where it takes several."""
    return f"{_format_time(hours)} on {pluralize(gpus, noun, f'{noun}s at once')}"


def format_both(gpu_hours: float, hours: float, cluster_gpus: int, noun: str = "GPU") -> str:
    """The time on one GPU, and that on so many of a cluster where it has work for several."""
    alone = format_hours(gpu_hours, 1, noun)
    if cluster_gpus == 1:
        return alone
    return (
        f"{alone}, about {_format_time(hours)} on the {cluster_gpus} that a cluster gives at once"
    )


def _format_time(hours: float) -> str:
    days = hours / HOURS_PER_DAY
    return format_duration(hours * SECONDS_PER_HOUR) if days < 3 else f"{days:,.1f} days"


@dataclass(frozen=True, slots=True)
class EarlierRate:
    """What several runs on one device took together, so that each weighs as its images do.

    `is_other_gpu`: the job's GPU is another.
    """

    runs: tuple[RunRate, ...]
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
        images = pluralize(self.images, "image")
        note = ", another GPU than the job's" if self.is_other_gpu else ""
        return f"measured by {runs}, {images}, on {self.device}{note}"

    def gpu_hours(self, work: float, shards: int) -> float:
        """What other work takes: its drawing, and loading as often as shards."""
        working = sum(run.working_seconds for run in self.runs)
        loading = sum(run.loading_seconds for run in self.runs)
        all_work = sum(run.work for run in self.runs)
        all_shards = sum(run.shards for run in self.runs)
        seconds = working * work / all_work + loading * shards / all_shards
        return seconds / 3600


def find_earlier_rate(job: Job, digest: str, gpu: str | None = None) -> EarlierRate | None:
    """What the latest runs took that drew with the job's model and settings on its device.

    On a GPU of the name `gpu`, or else on another. None if there is none under the job's output, or
    it cannot be read.
    """
    try:
        rates = _read_alike(read_entries(job.output), job, digest)
        if rate := _pool(rates, job.device, gpu):
            return rate
        on_gpus = [rate for rate in rates if rate.device not in DEVICES_WITHOUT_GPU_NAME]
        other = _pool(on_gpus, job.device, None)
        return other and replace(other, is_other_gpu=True)
    except KilnError:  # an estimate by other figures is better than none
        return None


def _pool(rates: Sequence[RunRate], device: str, gpu: str | None) -> EarlierRate | None:
    """The newest runs on the device of the newest that is the job's, until they are enough."""
    fitting = [rate for rate in rates if _is_on_device(rate.device, device, gpu)]
    chosen: list[RunRate] = []
    for rate in fitting:
        is_enough = sum(run.images for run in chosen) >= ENOUGH_IMAGES
        if rate.device == fitting[0].device and not is_enough:
            chosen.append(rate)
    return EarlierRate(tuple(chosen)) if chosen else None


def _is_on_device(measured: str, device: str, gpu: str | None) -> bool:
    """Whether a job of this `device`, on a GPU of this name if it is known, draws as measured."""
    if device in DEVICES_WITHOUT_GPU_NAME:
        return measured == device
    if gpu is not None:
        return normalize_gpu(measured) == normalize_gpu(gpu)
    return device == "auto" or measured not in DEVICES_WITHOUT_GPU_NAME


def _read_alike(entries: Sequence[RunEntry], job: Job, digest: str) -> list[RunRate]:
    """The rates of the latest runs, newest first, that drew with the same model and settings."""
    latest = list(islice(iter_successful(job.output, entries[::-1]), MAX_EARLIER_RUNS))
    store = open_store(job.output)
    with ThreadPoolExecutor(READERS) as pool:
        rates = [*pool.map(lambda entry: _read_rate(open_folder(store, entry.run_id)), latest)]
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
