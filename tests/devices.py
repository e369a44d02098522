"""A device that computes nothing but takes time, like a GPU seen from the other stages."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.transfer import PendingBatch
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.stats import StageSeconds
from tests import models

NOISES = 8


def remove_gpu(monkeypatch: pytest.MonkeyPatch, reason: str = "No CUDA GPUs are available") -> None:
    """Have PyTorch be built for CUDA, and find no GPU for a reason."""

    def fail() -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)


class StandIn(Denoiser):
    """Takes a fixed time for a batch, one batch after another, and returns noise as pictures."""

    def __init__(self, seconds: float, side: int) -> None:
        super().__init__(models.pipe("sd"))
        self.batches = 0
        self._seconds = seconds
        self._end = 0.0
        self._noise = np.random.default_rng(7).integers(0, 256, (NOISES, side, side, 3), np.uint8)

    def draw(
        self,
        rows: Sequence[ImageRow],
        size: int,  # noqa: ARG002
        check: Callable[[], None],  # noqa: ARG002
    ) -> Sequence[DrawnImage]:
        """Queue a batch, and wait for the one before it."""
        previous = Until(self._end)
        self._end = max(time.perf_counter(), self._end) + self._seconds
        self.batches += 1
        previous.synchronize()
        return PendingBatch(len(rows), Until(self._end), partial(self._pictures, rows))

    def set_upcoming(self, rows: Sequence[ImageRow]) -> None:
        """There are no prompts to encode."""

    def pop_times(self) -> StageSeconds:
        """Nothing is measured."""
        return StageSeconds()

    def _pictures(self, rows: Sequence[ImageRow]) -> list[DrawnImage]:
        return [
            DrawnImage(row.index_in_part, self._noise[row.parameters.seed % NOISES]) for row in rows
        ]


class Until:
    """A device event that completes at a time of the clock."""

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def synchronize(self) -> None:
        """Sleep until then."""
        time.sleep(max(0.0, self._moment - time.perf_counter()))
