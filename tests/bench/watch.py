"""Memory sampled while a job makes its images."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from imagekiln.steps.local import run
from imagekiln.steps.runtime.progress import NoProgress
from tests.bench.measure import MIB
from tests.bench.work import Work, job

SAMPLES = 20
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory in MiB after a number of images: of the process, and reserved on the device."""

    images: int
    host: int
    device: int


class Watch(NoProgress):
    """Samples memory while images are made."""

    def __init__(self, total: int) -> None:
        """Take about SAMPLES samples over this many images."""
        self.samples: list[Sample] = []
        self._interval = max(1, total // SAMPLES)
        self._drawn = 0

    def add_drawn(self, images: int) -> None:
        """Count drawn images, and take a sample at every interval."""
        before = self._drawn
        self._drawn += images
        if before // self._interval < self._drawn // self._interval:
            reserved = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append(Sample(self._drawn, pages * PAGE // MIB, reserved // MIB))


def sample_memory(work: Work) -> list[Sample]:
    """Memory while the job makes its images."""
    watch = Watch(work.images)
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        run(job(work, Path(folder)), watch)
    return watch.samples
