"""Which parts are still to be drawn, where other processes may make them too."""

import time
from collections.abc import Callable

from imagekiln.steps.generate.stages import Batch
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.storage.store import Store

RECHECK_SECONDS = 30.0  # the device waits for the answer: 20 ms from S3, a thousandth of its time


class PartWatch:
    """Asks the store before each part, and twice a minute while it is drawn.

    A part that another process has committed is not drawn, or not to its end.
    """

    def __init__(
        self,
        store: Store,
        progress: Progress,
        claim: Callable[[Part], bool] = lambda _: True,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        """Watch parts of the run in `store`. A part that `claim` refuses is not drawn either."""
        self.abandoned_images = 0
        self._store = store
        self._progress = progress
        self._claim = claim
        self._recheck_seconds = recheck_seconds
        self._is_missing = True
        self._asked_at = 0.0

    def is_missing(self, batch: Batch) -> bool:
        """Whether the batch is to be drawn. Those of one part come one after the other."""
        drawn = batch.rows[0].index_in_part
        if drawn == 0:
            self._is_missing = self._claim_missing(batch.part)
            self._asked_at = time.monotonic()
        elif self._is_missing and time.monotonic() >= self._asked_at + self._recheck_seconds:
            self._is_missing = not self._is_counted(batch.part, drawn)
            self._asked_at = time.monotonic()
            if not self._is_missing:
                self.abandoned_images += drawn
        return self._is_missing

    def _claim_missing(self, part: Part) -> bool:
        return not self._is_counted(part) and self._claim(part)

    def _is_counted(self, part: Part, drawn: int = 0) -> bool:
        if not self._store.exists(part.key):
            return False
        images = part.rows.num_rows
        self._progress.add_drawn(images - drawn)
        self._progress.add_committed(images)
        return True
