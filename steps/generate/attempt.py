"""One attempt at parts of a shard: generate in this thread, finish and commit in two others."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.device import describe_device, process_peak_bytes
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.encoder import OutputEncoder
from imagekiln.steps.generate.scores import score_and_rank
from imagekiln.steps.generate.stages import (
    CommittedPart,
    DrawnBatch,
    EncodedPart,
    JudgedImages,
    commit_parts,
    draw_batches,
    encode_parts,
    judge_batches,
    split_into_batches,
)
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.image import DrawnImage, ImageRow, image_rows
from imagekiln.steps.runs.manifest import read_forgotten
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import count_images, used_lora_names
from imagekiln.steps.runs.stats import ShardStats, StageSeconds, time_share
from imagekiln.steps.runtime.metrics import observe_stages
from imagekiln.steps.runtime.prefetch import QueueWaits, consume_in_thread, prefetch
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop, Stopped
from imagekiln.steps.storage.store import Store

MAX_QUEUED_BATCHES = 2
MAX_QUEUED_PARTS = 1
FinishParts = Callable[[Iterator[DrawnBatch]], Iterator[EncodedPart]]
PipelineResult = tuple[bool, Sequence[CommittedPart], StageSeconds]


class ShardWork:
    """Generates parts of a run with a model that is loaded on first use.

    Forgotten images are not stored again and do not compete as candidates.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        open_denoiser: Callable[[], Denoiser],
        progress: Progress,
        stop: Stop,
    ) -> None:
        """Prepare the encoder first: a missing signing key fails before a model is loaded."""
        self._store = store
        self._plan = plan
        self._open_denoiser = open_denoiser
        self._progress = progress
        self._stop = stop
        self._forgotten = frozenset(read_forgotten(store, read_head(store).commit).to_pylist())
        self._encoder = OutputEncoder(plan, self._forgotten)

    def make_parts(
        self, number: int, parts: Sequence[Part], is_wanted: Callable[[], bool] = lambda: True
    ) -> tuple[ShardStats, bool]:
        """Generate parts; return statistics for shard `number`, and whether it was stopped.

        Skips parts that another process has committed. Begins no part once `is_wanted` returns
        False.
        """
        started = time.perf_counter()
        denoiser = self._open_denoiser()
        denoiser.load_loras(used_lora_names(parts))
        loaded = time.perf_counter()
        load_seconds = loaded - started
        observe_stages(load=load_seconds)

        batches = [batch for part in parts for batch in split_into_batches(part, self._batch_size)]
        denoiser.pop_times()  # drop the times of an earlier attempt with the same model
        recovery = BatchRecovery(
            partial(denoiser.draw, check=self._stop.raise_if_due),
            self._batch_size,
            usual_pixels=self._plan.width * self._plan.height,
        )

        def is_missing(part: Part) -> bool:
            if not is_wanted() or not self._is_missing(part):
                return False
            denoiser.set_part(partial(image_rows, part.rows))
            return True

        drawn = draw_batches(batches, recovery, self._stop, denoiser.set_upcoming, is_missing)
        if denoiser.passes is not None:  # passes may use the model, so they run in its thread
            drawn = self._judge(drawn, denoiser)

        def finish(batches: Iterator[DrawnBatch]) -> Iterator[EncodedPart]:
            judged = self._judge(batches, denoiser) if denoiser.passes is None else batches
            return encode_parts(judged, self._encoder, self._progress)

        stopped, committed, waits = run_pipeline(
            drawn, finish, self._store, self._progress, self._stop
        )
        wall_seconds = time.perf_counter() - loaded
        seconds = sum((part.seconds for part in committed), denoiser.pop_times() + waits)
        seconds += StageSeconds(total=load_seconds + wall_seconds, load=load_seconds)
        return self._stats(number, denoiser, recovery, committed, seconds), stopped

    def _batch_size(self, row: ImageRow) -> int:
        """Return the planned size of a batch with rows of this shape."""
        return self._plan.batch_size(row.parameters.width, row.parameters.height)

    def _is_missing(self, part: Part) -> bool:
        """Return whether to generate a part. Count its images if another process committed it."""
        if not self._store.exists(part.key):
            return True
        self._progress.add_drawn(part.rows.num_rows)
        self._progress.add_committed(part.rows.num_rows)
        return False

    def _judge(self, drawn: Iterator[DrawnBatch], denoiser: Denoiser) -> Iterator[DrawnBatch]:
        """Score the images and run the job's passes on those that are kept."""
        job = self._plan.job

        def judge(images: Sequence[DrawnImage], rows: Sequence[ImageRow]) -> JudgedImages:
            seconds = StageSeconds()
            if job.scores:
                started = time.perf_counter()
                images = score_and_rank(job, denoiser.scorers, images, rows, self._forgotten)
                seconds.score = time.perf_counter() - started
            if denoiser.passes is not None:
                passed = denoiser.passes(images, rows, self._stop.raise_if_due)
                images = passed.images
                seconds.passes.update(passed.seconds)
            return images, seconds

        if not job.scores and denoiser.passes is None:
            return drawn
        # Judge so many candidates that their winners, which alone have passes, fill a batch.
        return judge_batches(drawn, judge, self._plan.max_batch_size * job.candidates)

    def _stats(
        self,
        number: int,
        denoiser: Denoiser,
        recovery: BatchRecovery,
        committed: Sequence[CommittedPart],
        seconds: StageSeconds,
    ) -> ShardStats:
        """Combine the statistics of the stages."""
        ended_at = time.time()
        new_parts = [each.part for each in committed if each.was_first]
        dropped = [each.part for each in committed if not each.was_first]
        busy = seconds.busy + sum(seconds.passes.values())
        return ShardStats(
            number,
            attempts=1,
            images=count_images(new_parts),
            parts=len(new_parts),
            max_batch_size=self._plan.max_batch_size,
            max_batch_pixels=recovery.max_pixels,
            device=describe_device(denoiser.device),
            seconds=seconds,
            versions=library_versions(self._plan.job),
            busy_share=time_share(busy, seconds.total - seconds.load),
            peak_memory=process_peak_bytes(denoiser.device),
            compile_mode=denoiser.compile_mode,
            decode_mode=denoiser.decode_mode,
            one_at_a_time=denoiser.one_at_a_time,
            placement=denoiser.placement,
            started_at=ended_at - seconds.total,
            ended_at=ended_at,
            repeated_images=count_images(dropped),
        )


def run_pipeline(
    drawn: Iterator[DrawnBatch],
    finish: FinishParts,
    store: Store,
    progress: Progress,
    stop: Stop,
) -> PipelineResult:
    """Generate batches in this thread; finish and commit parts in two others.

    Returns whether generation was stopped, the committed parts, and how long stages waited.
    """
    drawn_waits = QueueWaits(name="drawn")
    encoded_waits = QueueWaits(name="encoded")
    committed: list[CommittedPart] = []

    def finish_and_commit(batches: Iterator[DrawnBatch]) -> None:
        with closing(prefetch(finish(batches), MAX_QUEUED_PARTS, encoded_waits)) as ready:
            committed.extend(commit_parts(ready, store, progress))

    stopped = False
    with stop.deferred():
        try:
            consume_in_thread(drawn, finish_and_commit, MAX_QUEUED_BATCHES, drawn_waits)
        except Stopped:
            stopped = True
    waits = StageSeconds(
        denoise_waits=drawn_waits.full_seconds,
        encode_waits=drawn_waits.empty_seconds,
        write_waits=encoded_waits.empty_seconds,
    )
    return stopped, committed, waits
