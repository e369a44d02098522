"""The three stages of a shard, each a plain iterator: draw, encode, write. `generate` joins them."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice

from imagekiln.steps.generate.diffusion.transfer import count_pending
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.runs.formats import PackedPart, PartFormat
from imagekiln.steps.runs.image import (
    DrawnImage,
    EncodedImage,
    ImageRow,
    group_by_shape,
    image_rows,
)
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.stats import StageSeconds, time_stage
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import COMMIT_RESERVE_SECONDS, Stop
from imagekiln.steps.storage.store import Store

ENCODERS = 4
EncodeImage = Callable[[DrawnImage, ImageRow], EncodedImage]
OnUpcoming = Callable[[Sequence[ImageRow]], None]


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """A batch of pictures with the row of each, and the part that they belong to. They may still be being drawn."""

    part: Part
    images: Sequence[DrawnImage]
    rows: list[ImageRow]


@dataclass(slots=True)
class _RateEstimate:
    """How long an image takes. `pending` were begun, and may not be drawn yet."""

    images: int = 0
    pending: int = 0
    seconds: float = 0.0

    def estimate_seconds(self, left: int) -> float:
        """Seconds until images that are left are drawn, and those that are pending."""
        return (left + self.pending) * self.seconds / self.images if self.images else 0.0

    def add_batch(self, pictures: Sequence[DrawnImage], seconds: float) -> None:
        """So long the latest batch took, or the one before it where this one is still being drawn."""
        self.seconds += seconds
        self.images += self.pending + len(pictures)
        self.pending = count_pending(pictures)
        self.images -= self.pending


class _RowLookahead:
    """The rows of all parts in order, each looked at once, a batch before it is drawn."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Read rows of a part only when they are near."""
        self._rows = chain.from_iterable(image_rows(part.rows) for part in parts)
        self._drawn = self._seen = 0

    def upcoming(self, size: int) -> list[ImageRow]:
        """The rows that come after the next batch of this size, one batch of them, but those told of before."""
        following = self._take(self._drawn + 2 * size - self._seen)
        return following[max(0, self._drawn + size - (self._seen - len(following))) :]

    def advance(self, images: int) -> None:
        """So many more are drawn."""
        self._drawn += images

    def _take(self, count: int) -> list[ImageRow]:
        taken = list(islice(self._rows, max(0, count)))
        self._seen += len(taken)
        return taken


def draw_parts(
    missing: Sequence[Part], rescue: BatchRecovery, stop: Stop, expect: OnUpcoming = lambda _: None
) -> Iterator[DrawnBatch]:
    """Draw every missing part, batch by batch. Raises Stopped where the part cannot be finished in time.

    `expect` is told, before each batch, of the rows that come after it.
    """
    pace, coming = _RateEstimate(), _RowLookahead(missing)
    for part in missing:
        stop.raise_if_due(math.inf)  # no new part once asked to stop
        rows = image_rows(part.rows)
        batches = (batch for run in group_by_shape(rows) for batch in rescue.draw_batches(run))
        while rows:
            stop.raise_if_due(COMMIT_RESERVE_SECONDS + pace.estimate_seconds(len(rows)))
            expect(coming.upcoming(rescue.batch_size(rows[0])))
            started = time.perf_counter()
            pictures = next(batches)
            pace.add_batch(pictures, time.perf_counter() - started)
            coming.advance(len(pictures))
            now, rows = rows[: len(pictures)], rows[len(pictures) :]
            yield DrawnBatch(part, pictures, now)


def encode_parts(
    drawn: Iterator[DrawnBatch],
    encode: EncodeImage,
    layout: PartFormat,
    progress: Progress,
    seconds: StageSeconds,
) -> Iterator[PackedPart]:
    """Encode and judge pictures, several at a time, and put them together to parts."""
    done: list[EncodedImage] = []
    with ThreadPoolExecutor(ENCODERS) as pool:
        for batch in drawn:
            with time_stage(seconds, "encode_waits"):
                pictures = list(batch.images)
            with time_stage(seconds, "encode"):
                done += pool.map(encode, pictures, batch.rows)
            progress.add_drawn(len(pictures))
            if len(done) == batch.part.rows.num_rows:
                with time_stage(seconds, "encode"):
                    packed = layout.pack(batch.part, done)
                yield packed
                done = []


def commit_parts(
    finished: Iterator[PackedPart], store: Store, progress: Progress, seconds: StageSeconds
) -> Iterator[Part]:
    """Commit each part; yields it once it is there for good."""
    for each in finished:
        with time_stage(seconds, "write"):
            each.commit(store)
        progress.add_committed(each.part.rows.num_rows)
        yield each.part
