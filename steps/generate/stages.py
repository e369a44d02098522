"""The three stages of a shard as plain iterators: draw, encode, commit."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.diffusion.transfer import count_pending
from imagekiln.steps.runs.image import (
    DrawnImage,
    EncodedImage,
    ImageRow,
    PassedImages,
    group_by_shape,
    image_rows,
)
from imagekiln.steps.runs.parts import PackedPart, Part, pack_part
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.concurrency import thread_pool
from imagekiln.steps.runtime.metrics import count_images, observe_stages
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import COMMIT_RESERVE_SECONDS, Stop
from imagekiln.steps.storage.store import Store

ENCODER_THREADS = 4
EncodeImage = Callable[[DrawnImage, ImageRow], EncodedImage]
ScoreImages = Callable[[Sequence[DrawnImage], Sequence[ImageRow]], Sequence[DrawnImage]]
RunPasses = Callable[[Sequence[DrawnImage], Sequence[ImageRow]], PassedImages]
OnUpcoming = Callable[[Sequence[ImageRow]], None]
IsMissing = Callable[[Part], bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """Image rows of one part and one shape that are to be drawn at once, if memory allows."""

    part: Part
    rows: Sequence[ImageRow]


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """Drawn images and their rows, of one part. The device may still be working on them.

    `seconds` has the time of scores, of passes, and of waiting for the device before them.
    """

    part: Part
    images: Sequence[DrawnImage]
    rows: Sequence[ImageRow]
    seconds: StageSeconds = field(default_factory=StageSeconds)


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A part that is ready to be committed, the time spent on it, and its images by status."""

    packed: PackedPart
    seconds: StageSeconds
    statuses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """A part in the store. If not `was_first`, another process committed it."""

    part: Part
    seconds: StageSeconds
    was_first: bool


def split_into_batches(part: Part, batch_size: Callable[[ImageRow], int]) -> list[Batch]:
    """Split a part into batches. `batch_size` gives the size for a row's shape."""
    batches: list[Batch] = []
    for rows in group_by_shape(image_rows(part.rows)):
        size = batch_size(rows[0])
        batches += [Batch(part, rows[start : start + size]) for start in range(0, len(rows), size)]
    return batches


@dataclass(slots=True)
class Pace:
    """Seconds an image takes to be drawn and passed on, to tell when a part will be done.

    `pending` images are queued on the device.
    """

    drawn: int = 0
    pending: int = 0
    draw_seconds: float = 0.0
    passed: int = 0
    pass_seconds: float = 0.0

    def add_drawn(self, images: Sequence[DrawnImage], seconds: float) -> None:
        """Count a batch. If it is still pending, the seconds were those of the batch before it."""
        self.draw_seconds += seconds
        self.drawn += self.pending + len(images)
        self.pending = count_pending(images)
        self.drawn -= self.pending

    def add_passed(self, images: int, seconds: float) -> None:
        """Count images after their passes."""
        self.passed += images
        self.pass_seconds += seconds

    def seconds_to_finish(self, part: Part, row: ImageRow) -> float:
        """Seconds until the part is committed if this row is drawn next."""
        if row.index_in_part == 0:
            return math.inf  # no new part is begun after a request to stop
        images: int = part.rows.num_rows
        left = images - row.index_in_part + self.pending
        drawing = left * self.draw_seconds / max(1, self.drawn)
        passing = images * self.pass_seconds / max(1, self.passed)
        return COMMIT_RESERVE_SECONDS + drawing + passing


def draw_batches(
    batches: Sequence[Batch],
    recovery: BatchRecovery,
    stop: Stop,
    on_upcoming: OnUpcoming = lambda _: None,
    is_missing: IsMissing = lambda _: True,
    pace: Pace | None = None,
) -> Iterator[DrawnBatch]:
    """Draw batch after batch. Raises Stopped if the part at hand cannot be finished in time.

    `on_upcoming` is called before each batch with the rows of the next one. Batches of a part that
    is not missing any more are skipped.
    """
    pace = pace or Pace()
    is_wanted = True
    for index, batch in enumerate(batches):
        if batch.rows[0].index_in_part == 0:
            is_wanted = is_missing(batch.part)
        if not is_wanted:
            continue
        for upcoming in batches[index + 1 : index + 2]:
            on_upcoming(upcoming.rows)
        yield from _draw_batch(batch, recovery, stop, pace)


def _draw_batch(
    batch: Batch, recovery: BatchRecovery, stop: Stop, pace: Pace
) -> Iterator[DrawnBatch]:
    """Draw a batch at once or, if memory runs out, in several smaller ones."""
    rows = batch.rows
    while rows:
        stop.raise_if_due(pace.seconds_to_finish(batch.part, rows[0]))
        started = time.perf_counter()
        images = recovery.draw_prefix(rows)
        pace.add_drawn(images, time.perf_counter() - started)

        yield DrawnBatch(batch.part, images, rows[: len(images)])
        rows = rows[len(images) :]


def score_batches(
    drawn: Iterator[DrawnBatch], score: ScoreImages, images_at_once: int
) -> Iterator[DrawnBatch]:
    """Score the images of each part, so many at once, however memory cut their batches."""
    for batch in _regroup_batches(drawn, images_at_once):
        began = time.perf_counter()
        scored = score(batch.images, batch.rows)
        seconds = batch.seconds + StageSeconds(score=time.perf_counter() - began)
        yield replace(batch, images=scored, seconds=seconds)


def pass_batches(
    drawn: Iterator[DrawnBatch], run_passes: RunPasses, images_at_once: int, pace: Pace
) -> Iterator[DrawnBatch]:
    """Run the passes over the images of each part, so many at once."""
    for batch in _regroup_batches(drawn, images_at_once):
        passed = run_passes(batch.images, batch.rows)
        # Waiting for a batch here, and not at the next, leaves drawing no time to be measured by.
        seconds = batch.seconds + StageSeconds(passes=dict(passed.seconds))
        taken = seconds.encode_waits + seconds.score + sum(passed.seconds.values())
        pace.add_passed(len(batch.rows), taken)
        yield replace(batch, images=passed.images, seconds=seconds)


def _regroup_batches(drawn: Iterator[DrawnBatch], images_at_once: int) -> Iterator[DrawnBatch]:
    """The images of each part in its order, so many in a batch but for the last. Waits for them."""
    images: list[DrawnImage] = []
    rows: list[ImageRow] = []
    seconds = StageSeconds()
    for batch in drawn:
        began_waiting = time.perf_counter()
        images += batch.images
        rows += batch.rows
        waited = time.perf_counter() - began_waiting
        seconds += batch.seconds + StageSeconds(encode_waits=waited)

        is_last = rows[-1].index_in_part == batch.part.rows.num_rows - 1
        while len(rows) >= images_at_once or (is_last and rows):
            regrouped = images[:images_at_once]
            regrouped_rows = rows[:images_at_once]
            yield DrawnBatch(batch.part, regrouped, regrouped_rows, seconds)
            images, rows = images[images_at_once:], rows[images_at_once:]
            seconds = StageSeconds()


def encode_parts(
    drawn: Iterator[DrawnBatch],
    encode: EncodeImage,
    progress: Progress,
) -> Iterator[EncodedPart]:
    """Encode and judge images, several at a time, and pack the images of each part."""
    encoded: list[EncodedImage] = []
    seconds = StageSeconds()
    with thread_pool(ENCODER_THREADS) as pool:
        for batch in drawn:
            began_waiting = time.perf_counter()
            images = list(batch.images)
            began_encoding = time.perf_counter()
            encoded += pool.map(encode, images, batch.rows)
            progress.add_drawn(len(images))

            is_complete = len(encoded) == batch.part.rows.num_rows
            packed = pack_part(batch.part, encoded) if is_complete else None
            seconds += batch.seconds + StageSeconds(
                encode_waits=began_encoding - began_waiting,
                encode=time.perf_counter() - began_encoding,
            )
            if packed is not None:
                statuses = Counter[str](image.status for image in encoded)
                yield EncodedPart(packed, seconds, statuses)
                encoded = []
                seconds = StageSeconds()


def commit_parts(
    encoded: Iterator[EncodedPart], store: Store, progress: Progress
) -> Iterator[CommittedPart]:
    """Commit part after part. Each is yielded once it is in the store for good."""
    for part in encoded:
        started = time.perf_counter()
        was_first = part.packed.commit(store)
        seconds = part.seconds + StageSeconds(write=time.perf_counter() - started)

        observe_stages(encode=seconds.encode, write=seconds.write)
        count_images(part.statuses)
        progress.add_committed(part.packed.part.rows.num_rows)
        yield CommittedPart(part.packed.part, seconds, was_first)
