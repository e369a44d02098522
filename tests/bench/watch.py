"""Memory looked at now and then while a job makes its images."""

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
    """Memory after so many images, in MiB: the process's own, and what the device holds for it."""

    images: int
    host: int
    device: int


class Watch(NoProgress):
    """Looks at memory now and then, while images are made."""

    def __init__(self, total: int) -> None:
        """Look so often that there are a few samples of so many images."""
        self.samples: list[Sample] = []
        self._every, self._made = max(1, total // SAMPLES), 0

    def add_drawn(self, images: int) -> None:
        """So many more are made."""
        before, self._made = self._made, self._made + images
        if before // self._every < self._made // self._every:
            held = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append(Sample(self._made, pages * PAGE // MIB, held // MIB))


def watched(work: Work) -> list[Sample]:
    """Memory while the job makes its images."""
    watch = Watch(work.images)
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        run(job(work, Path(folder)), watch)
    return watch.samples
