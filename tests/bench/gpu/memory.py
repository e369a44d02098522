"""Section `memory`: does anything grow over thousands of images, each with its own prompt?"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests.bench.gpu.readings import Readings, take_readings
from tests.bench.gpu.report import Report
from tests.bench.gpu.session import Session
from tests.bench.jobs import run_job
from tests.bench.measure import scratch_folder
from tests.bench.processes import in_child
from tests.bench.work import Work, make_job

SAMPLES = 20
WARM_UP_SAMPLES = 4  # until when memory may still grow
SIDE = 512
STEPS = 2
BATCH = 16
PART_BATCHES = 4
RESERVE_SECONDS = 30.0  # for what is left to do once the budget is spent


class MemoryWatch(NoProgress):
    """Takes and publishes readings while images are made; stops the job in time."""

    def __init__(self, images: int, report: Report, session_deadline: float, stop: Stop) -> None:
        """Take about SAMPLES samples over this many images."""
        self.samples: list[Readings] = []
        self._report = report
        self._deadline = session_deadline - RESERVE_SECONDS - report.started
        self._stop = stop
        self._interval = max(1, images // SAMPLES)
        self._drawn = 0

    def add_drawn(self, images: int) -> None:
        """Count drawn images, and take readings at every interval."""
        intervals = self._drawn // self._interval
        self._drawn += images
        if self._drawn // self._interval > intervals:
            self._take_sample()

    def _take_sample(self) -> None:
        readings = take_readings()
        self.samples.append(readings)
        self._report.figure("memory.sample", self._drawn, "images", **asdict(readings))
        if self._report.seconds() > self._deadline:
            self._report.note("The budget is spent: the job is stopped.")
            self._stop.request()


def measure_memory(session: Session) -> None:
    """Readings over a job of small images of few steps, so that time goes into many of them."""
    work = replace(session.job_work, images=session.memory_images, steps=STEPS)
    if session.on_cuda:
        work = replace(work, side=SIDE, batch=BATCH)
    part = PART_BATCHES * work.batch
    work = replace(work, part=part)
    samples = in_child(watch_memory, work, session.report, session.deadline)
    _report_growth(session.report, samples)


def _report_growth(report: Report, samples: Sequence[Readings]) -> None:
    """The most that each reading grew after the warm-up."""
    if len(samples) <= WARM_UP_SAMPLES:
        report.note("memory: too few samples to say whether it grows.")
        return
    base = samples[WARM_UP_SAMPLES - 1]
    growths = [sample.since(base) for sample in samples[WARM_UP_SAMPLES:]]
    for name in growths[0]:
        largest = max(growth[name] for growth in growths)
        report.figure(
            f"memory.growth_{name}",
            largest,
            "" if name == "threads" else "MiB",
            after_samples=WARM_UP_SAMPLES,
        )


def watch_memory(work: Work, report: Report, deadline: float) -> list[Readings]:
    """The readings over a job."""
    stop = Stop()
    watch = MemoryWatch(work.images, report, deadline, stop)
    with scratch_folder() as folder:
        job = make_job(work, folder)
        with suppress(TryAgain):
            run_job(job, lambda draw: draw, watch, stop)
    return watch.samples
