"""The three stages of a shard as plain iterators: generate, encode, commit."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.runs.image import (
    DrawnImage,
    EncodedImage,
    ImageRow,
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
JudgedImages = tuple[Sequence[DrawnImage], StageSeconds]
JudgeImages = Callable[[Sequence[DrawnImage], Sequence[ImageRow]], JudgedImages]
OnUpcoming = Callable[[Sequence[ImageRow]], None]
IsMissing = Callable[[Part], bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """Image rows of one part and one shape to generate at once, if memory allows."""

    part: Part
    rows: Sequence[ImageRow]


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """Generated images of one part and their rows. The device may still be working on them.

    `seconds` has the time of scores and passes, and of waiting for the device before them.
    """

    part: Part
    images: Sequence[DrawnImage]
    rows: Sequence[ImageRow]
    seconds: StageSeconds = field(default_factory=StageSeconds)


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A part that is ready to commit, with the time spent on it and its image counts by status."""

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
    """Split a part into batches. `batch_size` returns the size for a row's shape."""
    batches: list[Batch] = []
    for rows in group_by_shape(image_rows(part.rows)):
        size = batch_size(rows[0])
        batches += [Batch(part, rows[start : start + size]) for start in range(0, len(rows), size)]
    return batches


def draw_batches(
    batches: Sequence[Batch],
    recovery: BatchRecovery,
    stop: Stop,
    on_upcoming: OnUpcoming = lambda _: None,
    is_missing: IsMissing = lambda _: True,
) -> Iterator[DrawnBatch]:
    """Generate batch after batch. Begin no part once a stop is requested. Raises Stopped when due.

    `on_upcoming` is called before each batch with the rows of the next one. Batches of a part that
    is no longer missing are skipped.
    """
    is_wanted = True
    for index, batch in enumerate(batches):
        begins_part = batch.rows[0].index_in_part == 0
        if begins_part:
            is_wanted = is_missing(batch.part)
        if not is_wanted:
            continue
        if begins_part:
            stop.raise_if_due(math.inf)
        for upcoming in batches[index + 1 : index + 2]:
            on_upcoming(upcoming.rows)
        rows = batch.rows
        while rows:  # repeats if memory runs out
            stop.raise_if_due(COMMIT_RESERVE_SECONDS)
            images = recovery.draw_prefix(rows)
            yield DrawnBatch(batch.part, images, rows[: len(images)])
            rows = rows[len(images) :]


def judge_batches(
    drawn: Iterator[DrawnBatch], judge: JudgeImages, images_at_once: int
) -> Iterator[DrawnBatch]:
    """Judge the images of each part in groups of `images_at_once`, regrouped from their batches."""
    for batch in _regroup_batches(drawn, images_at_once):
        images, seconds = judge(batch.images, batch.rows)
        yield replace(batch, images=images, seconds=batch.seconds + seconds)


def _regroup_batches(drawn: Iterator[DrawnBatch], images_at_once: int) -> Iterator[DrawnBatch]:
    """Regroup each part's images into batches of `images_at_once`, waiting for the device."""
    pairs: list[tuple[DrawnImage, ImageRow]] = []
    seconds = StageSeconds()
    for batch in drawn:
        began_waiting = time.perf_counter()
        pairs += zip(batch.images, batch.rows, strict=True)
        waited = time.perf_counter() - began_waiting
        seconds += batch.seconds + StageSeconds(encode_waits=waited)

        is_last = batch.rows[-1].index_in_part == batch.part.rows.num_rows - 1
        while len(pairs) >= images_at_once or (is_last and pairs):
            images, rows = zip(*pairs[:images_at_once], strict=True)
            yield DrawnBatch(batch.part, images, rows, seconds)
            del pairs[:images_at_once]
            seconds = StageSeconds()


def encode_parts(
    drawn: Iterator[DrawnBatch],
    encode: EncodeImage,
    progress: Progress,
) -> Iterator[EncodedPart]:
    """Encode and judge images in parallel, and pack the images of each part."""
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
    """Commit part after part. Yield each part once it is in the store."""
    for part in encoded:
        started = time.perf_counter()
        was_first = part.packed.commit(store)
        seconds = part.seconds + StageSeconds(write=time.perf_counter() - started)

        observe_stages(encode=seconds.encode, write=seconds.write)
        count_images(part.statuses)
        progress.add_committed(part.packed.part.rows.num_rows)
        yield CommittedPart(part.packed.part, seconds, was_first)
