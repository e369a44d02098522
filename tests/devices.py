"""A device that computes nothing and takes its time: to the stages it looks like a GPU."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.profiling import DeviceTimes
from imagekiln.steps.generate.diffusion.transfer import PendingBatch
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from tests import models

NOISES = 8


class StandIn(Denoiser):
    """Takes a fixed time for a batch, one batch after another, and returns noise as pictures."""

    def __init__(self, seconds: float, side: int) -> None:
        super().__init__(models.pipe("sd"))
        self.batches = 0
        self._seconds, self._over = seconds, 0.0
        self._noise = np.random.default_rng(7).integers(0, 256, (NOISES, side, side, 3), np.uint8)

    def draw(
        self,
        rows: Sequence[ImageRow],
        size: int,  # noqa: ARG002
        check: Callable[[], None],  # noqa: ARG002
    ) -> Sequence[DrawnImage]:
        """Queue a batch, and wait for the one before it."""
        before = Until(self._over)
        self._over = max(time.perf_counter(), self._over) + self._seconds
        self.batches += 1
        before.synchronize()
        return PendingBatch(len(rows), Until(self._over), partial(self._given, rows))

    def set_upcoming(self, rows: Sequence[ImageRow]) -> None:
        """It has no texts to encode."""

    def pop_times(self) -> DeviceTimes:
        """It does not tell."""
        return DeviceTimes()

    def _given(self, rows: Sequence[ImageRow]) -> list[DrawnImage]:
        return [
            DrawnImage(row.index_in_part, self._noise[row.parameters.seed % NOISES]) for row in rows
        ]


class Until:
    """An event that comes at a time of the clock."""

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def synchronize(self) -> None:
        """Sleep until then."""
        time.sleep(max(0.0, self._moment - time.perf_counter()))
