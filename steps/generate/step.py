"""The generate step: the parts of one shard that are missing are drawn, encoded and committed.

While a batch is on the device, the one before it is encoded and the part before that is written.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.device import describe_device, process_peak_bytes
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.diffusion.profiling import DeviceTimes
from imagekiln.steps.generate.encoder import OutputEncoder
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.generate.stages import DrawnBatch, commit_parts, draw_parts, encode_parts
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import ImageRow, image_rows
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.shard import count_images, missing_parts, read_shard, used_lora_names
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    add_queue_waits,
    record_stats,
    time_share,
    time_stage,
)
from imagekiln.steps.runtime.prefetch import QueueWaits, consume_in_thread, prefetch
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop, Stopped
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

MAX_QUEUED_BATCHES = 2
MAX_QUEUED_PARTS = 1


def generate(
    uri: str, number: int, progress: Progress | None = None, stop: Stop | None = None
) -> ShardStats | None:
    """Make what is missing of one shard of the run at `uri`; None where nothing was.

    Raises BadInput where run, shard or model are not as planned, TryAgain where it was stopped or storage failed.
    """
    progress, stop = progress or NoProgress(), stop or Stop()
    store = open_store(uri)
    plan = load_plan(store)
    progress.start(plan.shards[number].images if 0 <= number < len(plan.shards) else 0)
    return generate_shard(store, plan, number, denoiser_loader(store, plan), progress, stop)


def denoiser_loader(store: Store, plan: Plan) -> Callable[[], Denoiser]:
    """What loads the model of a run, or of a round, when it is first needed, and gives the same one from then on."""
    return cache(lambda: load_denoiser(plan, store))


def generate_shard(
    store: Store,
    plan: Plan,
    number: int,
    open_denoiser: Callable[[], Denoiser],
    progress: Progress,
    stop: Stop,
) -> ShardStats | None:
    """Make what is missing of one shard with a model that several shards may share."""
    wanted = read_shard(store, plan, number)
    missing = recover_parts(store, format_of(plan.job), missing_parts(store, wanted))
    progress.add_existing(count_images(wanted) - count_images(missing))
    if not missing:
        return None
    if stop.requested_at is not None:  # a model takes minutes to load
        raise _stopped_error(store, number, len(missing))
    work = _ShardAttempt(store, plan, OutputEncoder(plan), progress, stop)
    with time_stage(work.seconds, "load"):
        denoiser = open_denoiser()
        denoiser.load_loras(used_lora_names(missing))
    try:
        with stop.deferred():
            work.run(missing, denoiser)
    except Stopped:
        record_stats(store, work.stats(number, denoiser))
        raise _stopped_error(store, number, len(missing) - len(work.committed_parts)) from None
    told = work.stats(number, denoiser)
    record_stats(store, told)
    return told


def _stopped_error(store: Store, number: int, left: int) -> TryAgain:
    return TryAgain(
        f"{store.uri}: shard {number} was stopped with {left} parts left. Run it again."
    )


class _ShardAttempt:
    """One attempt at a shard: the stages joined, and what they took."""

    def __init__(
        self, store: Store, plan: Plan, encoder: OutputEncoder, progress: Progress, stop: Stop
    ) -> None:
        self.seconds = StageSeconds()
        self.committed_parts: list[Part] = []
        self._store, self._encoder, self._progress, self._stop = store, encoder, progress, stop
        self._layout = format_of(plan.job)
        self._device = DeviceTimes()
        self._plan = plan
        self._max_pixels: int | None = None

    def run(self, missing: list[Part], denoiser: Denoiser) -> None:
        """Make these parts, one after the other."""
        denoiser.prefetch_images(row for part in missing for row in image_rows(part.rows))
        rescue = BatchRecovery(
            partial(denoiser.draw, check=self._stop.raise_if_due), self._planned_batch_size
        )
        drawn, encoded = QueueWaits(), QueueWaits()
        started, compiled = time.perf_counter(), denoiser.compiled_pipeline.clock.seconds
        denoiser.pop_times()  # of an attempt before, with the same model
        batches = draw_parts(missing, rescue, self._stop, denoiser.set_upcoming)
        try:
            consume_in_thread(
                batches, partial(self._encode_and_commit, waits=encoded), MAX_QUEUED_BATCHES, drawn
            )
        finally:
            self._max_pixels = rescue.max_pixels
            self.seconds.total = self.seconds.load + time.perf_counter() - started
            self.seconds.compile = denoiser.compiled_pipeline.clock.seconds - compiled
            add_queue_waits(self.seconds, drawn, encoded)
            self._add_times(denoiser.pop_times())

    def _planned_batch_size(self, row: ImageRow) -> int:
        return self._plan.batch_size(row.parameters.width, row.parameters.height)

    def _encode_and_commit(self, pictures: Iterator[DrawnBatch], waits: QueueWaits) -> None:
        """Encode what was drawn and write it, in two threads beside the one that draws."""
        contents = encode_parts(pictures, self._encoder, self._layout, self._progress, self.seconds)
        with closing(prefetch(contents, MAX_QUEUED_PARTS, waits)) as finished:
            self.committed_parts.extend(
                commit_parts(finished, self._store, self._progress, self.seconds)
            )

    def _add_times(self, taken: DeviceTimes) -> None:
        """Write down what the device's time went into."""
        self.seconds.text, self.seconds.denoise = taken.text, taken.denoise
        self.seconds.decode, self.seconds.copy = taken.decode, taken.copy
        self._device = taken

    def stats(self, number: int, denoiser: Denoiser) -> ShardStats:
        """The statistics of this attempt."""
        return ShardStats(
            number,
            attempts=1,
            images=count_images(self.committed_parts),
            parts=len(self.committed_parts),
            max_batch_size=self._plan.max_batch_size,
            max_batch_pixels=self._max_pixels,
            device=describe_device(denoiser.device),
            seconds=self.seconds,
            versions=library_versions(self._plan.job),
            busy_share=time_share(self._device.busy, self.seconds.total - self.seconds.load),
            peak_memory=process_peak_bytes(denoiser.device),
            compile_mode=denoiser.compiled_pipeline.mode,
            decode_mode=denoiser.vae_decoder.mode,
        )
