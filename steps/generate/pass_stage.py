"""The second stage of a shard whose passes are separate: they run over what was drawn and stored.

Then images are encoded, and parts committed, as without stages. What was drawn of a part is removed
once the part is committed.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from imagekiln.steps.errors import NotDrawn, StorageRefused
from imagekiln.steps.generate.attempt import (
    Attempt,
    encode_for,
    record_attempt,
    run_pipeline,
    shard_stats,
    stopped_error,
)
from imagekiln.steps.generate.diffusion.denoiser import DenoiserStats
from imagekiln.steps.generate.diffusion.device import describe_device, process_peak_bytes
from imagekiln.steps.generate.diffusion.profiling import DeviceTimes
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.lazy_denoiser import LoadedPasses
from imagekiln.steps.generate.stages import DrawnBatch, PassRate, pass_batches
from imagekiln.steps.runs.drawn_parts import find_drawn_parts, read_drawn_part, remove_drawn_part
from imagekiln.steps.runs.image import DrawnImage, ImageRow, PassedImages, image_rows
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.parts_to_make import parts_to_make
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import count_images, read_shard, used_lora_names
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.metrics import observe_stages
from imagekiln.steps.runtime.prefetch import QueueWaits, prefetch
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.runtime.signals import COMMIT_RESERVE_SECONDS, Stop
from imagekiln.steps.storage.store import Store

ALL_PARTS = slice(None)
MAX_PARTS_AHEAD = 1  # that are read while passes run over another: pixels take memory
# A part, and what was drawn of it, unless that is gone: whoever committed the part removed it.
DrawnPart = tuple[Part, Sequence[DrawnImage] | None]


def pass_shard(
    store: Store,
    plan: Plan,
    number: int,
    open_passes: Callable[[], LoadedPasses],
    progress: Progress,
    stop: Stop,
    startup: Startup | None = None,
    *,
    parts: slice = ALL_PARTS,
    record: Callable[[ShardStats], None] | None = None,
) -> ShardStats | None:
    """Make what is missing of one shard from what was drawn of it; otherwise as `generate_shard`.

    Raises NotDrawn where a part is neither drawn nor committed, after all others.
    """
    shard = read_shard(store, plan, number)[parts]
    missing = parts_to_make(store, plan, number, shard)
    remove_drawn = _DrawnRemoval(store, progress)
    _remove_leftovers(store, shard, missing, remove_drawn)
    progress.add_existing(count_images(shard) - count_images(missing))
    drawn = find_drawn_parts(store, missing)
    if not drawn:
        _require_committed(store, number, missing)
        return None
    if stop.requested_at is not None:  # loading a model takes minutes
        raise stopped_error(store, number, len(missing))

    finish = encode_for(store, plan, progress)
    passes, load_seconds = _load(open_passes, drawn)
    source = _PassSource(store, plan, passes, progress, stop)
    run = run_pipeline(
        source.pass_parts(drawn),
        finish,
        store,
        passes.device,
        progress,
        stop,
        after_commit=remove_drawn,
    )
    stats = shard_stats(plan, number, load_seconds, Attempt(run, _model_stats(passes)), startup)
    if not run.stopped:  # to draw and to pass is one attempt
        stats = replace(stats, attempts=0)
    record_attempt(store, stats, record)
    if run.stopped:
        left = [part for part in missing if not store.exists(part.key)]
        raise stopped_error(store, number, len(left))
    _require_committed(store, number, missing)
    return stats


def _load(
    open_passes: Callable[[], LoadedPasses], parts: Sequence[Part]
) -> tuple[LoadedPasses, float]:
    """The passes with the LoRAs of these parts, and the seconds that it took to load."""
    started = time.perf_counter()
    passes = open_passes()
    if passes.denoiser is not None:
        passes.denoiser.load_loras(used_lora_names(parts))
        passes.denoiser.pop_stats()  # of an earlier shard
    seconds = time.perf_counter() - started
    observe_stages(load=seconds)
    return passes, seconds


def _remove_leftovers(
    store: Store, shard: Sequence[Part], missing: Sequence[Part], remove: Callable[[Part], None]
) -> None:
    """Remove what a process that was killed left of parts that it had committed."""
    missing_keys = {part.key for part in missing}
    committed = [part for part in shard if part.key not in missing_keys]
    for part in find_drawn_parts(store, committed):
        remove(part)


class _DrawnRemoval:
    """Removes what was drawn of committed parts. Where a store forbids it, that stays, for `gc`."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._is_refused = False

    def __call__(self, part: Part) -> None:
        if self._is_refused:
            return
        try:
            remove_drawn_part(self._store, part)
        except StorageRefused as error:
            self._is_refused = True
            sentence = f"{error} No image is lost; `imagekiln gc` removes what stays of drawing."
            self._progress.show_event(Event("drawn_left", {}, sentence))


def _require_committed(store: Store, number: int, parts: Sequence[Part]) -> None:
    """Raise NotDrawn where a part is still missing."""
    left = [part for part in parts if not store.exists(part.key)]
    if left:
        command = format_command("generate", store.uri, f"--shard {number} --stage draw")
        raise NotDrawn(
            f"{store.uri}: {NotDrawn.phrase} of {pluralize(len(left), 'part')} of shard "
            f"{number}, so no pass can run over it. Draw it first (`{command}`), and run this "
            "again."
        )


class _PassSource:
    """What runs passes over the drawn images of parts, one part after another."""

    def __init__(
        self, store: Store, plan: Plan, passes: LoadedPasses, progress: Progress, stop: Stop
    ) -> None:
        self._store = store
        self._plan = plan
        self._passes = passes
        self._progress = progress
        self._stop = stop
        self._rate = PassRate()

    def pass_parts(self, parts: Sequence[Part]) -> Iterator[DrawnBatch]:
        """The images of the parts after their passes. Raises Stopped before the next part."""
        # As where one pod does both, so that batches are the same.
        images_at_once = self._plan.max_batch_size * self._plan.job.candidates
        with closing(self._read(parts)) as drawn:
            yield from pass_batches(drawn, self._run_passes, images_at_once, self._rate)

    def _run_passes(self, images: Sequence[DrawnImage], rows: Sequence[ImageRow]) -> PassedImages:
        return self._passes.run(images, rows, self._check)

    def _check(self) -> None:
        self._stop.raise_if_due(COMMIT_RESERVE_SECONDS)

    def _read(self, parts: Sequence[Part]) -> Generator[DrawnBatch]:
        waits = QueueWaits()
        with closing(prefetch(self._read_drawn(parts), MAX_PARTS_AHEAD, waits)) as drawn_parts:
            for part, images in drawn_parts:
                self._stop.raise_if_due(math.inf)
                if self._store.exists(part.key):  # another process was faster
                    self._progress.add_drawn(part.rows.num_rows)
                    self._progress.add_committed(part.rows.num_rows)
                elif images is not None:
                    yield DrawnBatch(part, images, image_rows(part.rows))

    def _read_drawn(self, parts: Sequence[Part]) -> Iterator[DrawnPart]:
        for part in parts:
            yield part, read_drawn_part(self._store, part, self._plan.job.scores)


def _model_stats(passes: LoadedPasses) -> DenoiserStats:
    """How the models of passes ran, in the terms of one that draws; nothing was drawn."""
    device = describe_device(passes.device)
    peak = process_peak_bytes(passes.device)
    compile_seconds = 0.0
    if passes.denoiser is not None:
        compile_seconds = passes.denoiser.pop_stats().compile_seconds
    return DenoiserStats(device, DeviceTimes(), compile_seconds, peak, "none", "whole")
