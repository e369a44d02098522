"""The first stage of a shard whose passes are separate: its images are drawn, scored and chosen.

In place of passes and encoding, the pixels of each part are stored as they are. A part that is
stored, or committed, is not drawn again.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from imagekiln.steps.generate.attempt import (
    Work,
    draw_parts,
    encode_for,
    load_model,
    record_attempt,
    shard_stats,
    stopped_error,
)
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.part_watch import PartWatch
from imagekiln.steps.generate.stages import DrawnBatch, EncodedPart
from imagekiln.steps.runs.drawn_parts import find_drawn_parts, is_drawn, pack_drawn_part
from imagekiln.steps.runs.forgotten import read_forgotten
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, DrawnImage, ImageRow
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.parts_to_make import parts_to_make
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import count_images, read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store

ALL_PARTS = slice(None)


def draw_shard(
    store: Store,
    plan: Plan,
    number: int,
    open_denoiser: Callable[[], Denoiser],
    progress: Progress,
    stop: Stop,
    startup: Startup | None = None,
    *,
    parts: slice = ALL_PARTS,
    record: Callable[[ShardStats], None] | None = None,
) -> ShardStats | None:
    """Draw what is neither stored nor committed of one shard; as `generate_shard` otherwise.

    Its images count once the passes have run. `progress` counts those that are stored.
    """
    shard = read_shard(store, plan, number)[parts]
    missing = parts_to_make(store, plan, number, shard)
    drawn_keys = {part.key for part in find_drawn_parts(store, missing)}
    undrawn = [part for part in missing if part.key not in drawn_keys]
    progress.add_existing(count_images(shard) - count_images(undrawn))
    if not undrawn:
        return None
    if stop.requested_at is not None:
        raise stopped_error(store, number, len(undrawn))

    encode_for(store, plan, progress)  # now, and not after hours: it may lack a key to sign with
    forgotten = frozenset(read_forgotten(store, plan).to_pylist())
    denoiser, load_seconds = load_model(open_denoiser, undrawn)
    finish = partial(_pack_parts, forgotten=forgotten, progress=progress)
    work = Work(store, plan, denoiser, finish, progress, stop, startup)
    attempt = draw_parts(work, undrawn, PartWatch(store, progress, is_made=is_drawn_or_committed))
    stats = shard_stats(plan, number, load_seconds, attempt, startup)
    stats = replace(stats, images=0, parts=0)
    record_attempt(store, stats, record)
    if attempt.run.stopped:
        left = [part for part in undrawn if not is_drawn_or_committed(store, part)]
        raise stopped_error(store, number, len(left))
    return stats


def is_drawn_or_committed(store: Store, part: Part) -> bool:
    """Whether there is nothing left to draw of a part."""
    return is_drawn(store, part) or store.exists(part.key)


def _pack_parts(
    drawn: Iterator[DrawnBatch], forgotten: Collection[str], progress: Progress
) -> Iterator[EncodedPart]:
    """Pack the images of each part as they were drawn."""
    images: list[DrawnImage] = []
    wait_seconds = 0.0
    score_seconds = 0.0
    for batch in drawn:
        if batch.rows[0].index_in_part == 0:
            images = []  # of a part that was given up, since another process stored it
            wait_seconds = 0.0
            score_seconds = 0.0
        began_waiting = time.perf_counter()
        for image, row in zip(batch.images, batch.rows, strict=True):
            images.append(_without_forgotten(image, row, forgotten))
        began_packing = time.perf_counter()
        progress.add_drawn(len(batch.rows))

        wait_seconds += began_packing - began_waiting + batch.wait_seconds
        score_seconds += batch.score_seconds
        if len(images) == batch.part.rows.num_rows:
            packed = pack_drawn_part(batch.part, images)
            pack_seconds = time.perf_counter() - began_packing
            yield EncodedPart(packed, wait_seconds, pack_seconds, score_seconds=score_seconds)


def _without_forgotten(image: DrawnImage, row: ImageRow, forgotten: Collection[str]) -> DrawnImage:
    """The image; of one that was taken down, what is known of it without its pixels."""
    if row.image_id not in forgotten:
        return image
    return replace(image, rgb=None, status=FORGOTTEN_STATUS, error=None)
