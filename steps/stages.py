"""The three stages of a shard, each a plain iterator: draw, encode, write. `generate` joins them."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice

from imagekiln.steps.drawing import unfinished
from imagekiln.steps.encode import Encoded, Picture
from imagekiln.steps.formats import Format, Packed
from imagekiln.steps.progress import Progress
from imagekiln.steps.rescue import Rescue
from imagekiln.steps.rows import ImageRow, image_rows, same_shape
from imagekiln.steps.shard import Part
from imagekiln.steps.stats import Seconds, timed
from imagekiln.steps.stop import COMMIT_SECONDS, Stop
from imagekiln.steps.storage import Store

ENCODERS = 4
Encode = Callable[[Picture, ImageRow], Encoded]
Expect = Callable[[Sequence[ImageRow]], None]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch of pictures with the row of each, and the part that they belong to. They may still be being drawn."""

    part: Part
    pictures: Sequence[Picture]
    rows: list[ImageRow]


@dataclass(slots=True)
class _Pace:
    """How long an image takes. `pending` were begun, and may not be drawn yet."""

    images: int = 0
    pending: int = 0
    seconds: float = 0.0

    def time_for(self, left: int) -> float:
        """Seconds until images that are left are drawn, and those that are pending."""
        return (left + self.pending) * self.seconds / self.images if self.images else 0.0

    def begun(self, pictures: Sequence[Picture], seconds: float) -> None:
        """So long the latest batch took, or the one before it where this one is still being drawn."""
        self.seconds += seconds
        self.images += self.pending + len(pictures)
        self.pending = unfinished(pictures)
        self.images -= self.pending


class _Coming:
    """The rows of all parts in order, each looked at once, a batch before it is drawn."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Read rows of a part only when they are near."""
        self._rows = chain.from_iterable(image_rows(part.rows) for part in parts)
        self._drawn = self._seen = 0

    def after(self, size: int) -> list[ImageRow]:
        """The rows that come after the next batch of this size, one batch of them, but those told of before."""
        following = self._taken(self._drawn + 2 * size - self._seen)
        return following[max(0, self._drawn + size - (self._seen - len(following))) :]

    def drawn(self, images: int) -> None:
        """So many more are drawn."""
        self._drawn += images

    def _taken(self, count: int) -> list[ImageRow]:
        taken = list(islice(self._rows, max(0, count)))
        self._seen += len(taken)
        return taken


def draw(missing: Sequence[Part], rescue: Rescue, stop: Stop, expect: Expect = lambda _: None) -> Iterator[Drawn]:
    """Draw every missing part, batch by batch. Raises Stopped where the part cannot be finished in time.

    `expect` is told, before each batch, of the rows that come after it.
    """
    pace, coming = _Pace(), _Coming(missing)
    for part in missing:
        stop.check(math.inf)  # no new part once asked to stop
        rows = image_rows(part.rows)
        batches = (batch for run in same_shape(rows) for batch in rescue.batches(run))
        while rows:
            stop.check(COMMIT_SECONDS + pace.time_for(len(rows)))
            expect(coming.after(rescue.batch(rows[0])))
            started = time.perf_counter()
            pictures = next(batches)
            pace.begun(pictures, time.perf_counter() - started)
            coming.drawn(len(pictures))
            now, rows = rows[: len(pictures)], rows[len(pictures) :]
            yield Drawn(part, pictures, now)


def finish(
    drawn: Iterator[Drawn], encode: Encode, layout: Format, progress: Progress, seconds: Seconds
) -> Iterator[Packed]:
    """Encode and judge pictures, several at a time, and put them together to parts."""
    done: list[Encoded] = []
    with ThreadPoolExecutor(ENCODERS) as pool:
        for batch in drawn:
            with timed(seconds, "encode_waits"):
                pictures = list(batch.pictures)
            with timed(seconds, "encode"):
                done += pool.map(encode, pictures, batch.rows)
            progress.made(len(pictures))
            if len(done) == batch.part.rows.num_rows:
                with timed(seconds, "encode"):
                    packed = layout.pack(batch.part, done)
                yield packed
                done = []


def write(finished: Iterator[Packed], store: Store, progress: Progress, seconds: Seconds) -> Iterator[Part]:
    """Commit each part; yields it once it is there for good."""
    for each in finished:
        with timed(seconds, "write"):
            each.commit(store)
        progress.kept(each.part.rows.num_rows)
        yield each.part
