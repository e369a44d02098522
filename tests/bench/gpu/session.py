"""The arguments of every section: the work to measure, the report, and the time that is left."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from tests.bench import random_models
from tests.bench.gpu.networks import Placement
from tests.bench.gpu.report import Report
from tests.bench.limit import matrix_flops
from tests.bench.processes import in_child
from tests.bench.work import Work


@dataclass(frozen=True)
class Session:
    """One sitting at a device.

    `work` names no model on disk yet: `job_work` writes it. `deadline` is a time of `time.time`.
    """

    model: str
    models: Path
    work: Work
    report: Report
    deadline: float
    naive_images: int
    ways: tuple[str, ...]

    @property
    def on_cuda(self) -> bool:
        """Whether the work runs on CUDA."""
        return self.work.device == "cuda"

    @property
    def placement(self) -> Placement:
        """Where networks run."""
        return Placement(self.work.device, getattr(torch, self.work.dtype))

    @cached_property
    def job_work(self) -> Work:
        """The work with its model, which is written to disk if it is not there yet."""
        path = in_child(random_models.local, self.model, self.models)
        return replace(self.work, model=path)

    @cached_property
    def limit(self) -> float:
        """FLOP a second of a large product of matrices in the dtype of the work."""
        return matrix_flops(self.work.device, self.work.dtype)

    def seconds_left(self) -> float:
        """Seconds until the budget is spent."""
        return self.deadline - time.time()

    def has_time_for(self, what: str, seconds: float) -> bool:
        """Whether this much time is left; says what is omitted where it is not."""
        left = self.seconds_left()
        if left >= seconds:
            return True
        self.report.note(
            f"{what}: omitted, it needs about {seconds:.0f} s and {left:.0f} s are left."
        )
        return False

    def needs_cuda(self, what: str) -> bool:
        """Whether this cannot be measured here; says so."""
        if self.on_cuda:
            return False
        self.report.note(f"{what}: needs CUDA.")
        return True
