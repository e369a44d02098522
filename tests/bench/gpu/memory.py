"""Section `memory`: does anything grow over thousands of images, each with its own prompt?"""

from contextlib import suppress
from dataclasses import asdict, replace

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests.bench.gpu.readings import Readings, take_readings
from tests.bench.gpu.report import Report
from tests.bench.gpu.session import Session, scratch_folder
from tests.bench.jobs import run_job
from tests.bench.processes import in_child
from tests.bench.work import Work, job

SAMPLES = 20
WARM_UP_SAMPLES = 4  # until when memory may still grow
SIDE = 512
STEPS = 2
BATCH = 16
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
        before = self._drawn
        self._drawn += images
        if before // self._interval == self._drawn // self._interval:
            return
        readings = take_readings()
        self.samples.append(readings)
        self._report.figure("memory.sample", self._drawn, "images", **asdict(readings))
        if self._report.seconds() > self._deadline:
            self._report.note("The budget is spent: the job is stopped.")
            self._stop.request()


def measure_memory(session: Session) -> None:
    """Readings over a job of small images of few steps, so that time goes into many of them."""
    images = session.memory_images
    work = replace(session.job_work, images=images, steps=STEPS, part=4 * session.work.batch)
    if session.on_cuda:
        work = replace(work, side=SIDE, batch=BATCH, part=4 * BATCH)
    samples = in_child(watch_memory, work, session.report, session.deadline)
    if len(samples) <= WARM_UP_SAMPLES:
        session.report.note("memory: too few samples to say whether it grows.")
        return
    early = samples[WARM_UP_SAMPLES - 1]
    grown = [sample.since(early) for sample in samples[WARM_UP_SAMPLES:]]
    for name in asdict(early):
        unit = "" if name == "threads" else "MiB"
        most = max(growth[name] for growth in grown)
        session.report.figure(f"memory.growth_{name}", most, unit, after_samples=WARM_UP_SAMPLES)


def watch_memory(work: Work, report: Report, deadline: float) -> list[Readings]:
    """The readings over a job."""
    stop = Stop()
    watch = MemoryWatch(work.images, report, deadline, stop)
    with scratch_folder() as folder, suppress(TryAgain):
        run_job(job(work, folder), lambda draw: draw, watch, stop)
    return watch.samples
