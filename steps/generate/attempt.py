"""One attempt at parts of a shard: they are drawn in this thread, and finished in two others.

While the device draws a batch, the batch before it is finished and the part before that is written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.device import (
    describe_device,
    process_peak_bytes,
    synchronized_time,
)
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.encoder import OutputEncoder
from imagekiln.steps.generate.scores import images_scored_at_once, score_and_rank
from imagekiln.steps.generate.stages import (
    Batch,
    CommittedPart,
    DrawnBatch,
    EncodedPart,
    PassRate,
    commit_parts,
    draw_batches,
    encode_parts,
    pass_batches,
    score_batches,
    split_into_batches,
)
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.image import DrawnImage, ImageRow, PassedImages
from imagekiln.steps.runs.manifest import read_forgotten
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import count_images, used_lora_names
from imagekiln.steps.runs.start_times import format_start
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    time_share,
)
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.metrics import observe_stages
from imagekiln.steps.runtime.prefetch import QueueWaits, consume_in_thread, prefetch
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.runtime.signals import Stop, Stopped
from imagekiln.steps.storage.store import Store

MAX_QUEUED_BATCHES = 2
MAX_QUEUED_PARTS = 1
RECHECK_SECONDS = 30.0  # the device waits for the answer: 20 ms from S3, a thousandth of its time
FinishParts = Callable[[Iterator[DrawnBatch]], Iterator[EncodedPart]]


def _after_step(stop: Stop, startup: Startup, denoiser: Denoiser, progress: Progress) -> None:
    """End the start with the first step; after any step, give up where it is time to."""
    if startup.clock.seconds is None:
        synchronized_time(denoiser.device)
        start = startup.clock.end_first_step(
            denoiser.compiled_pipeline.clock.seconds, startup.hash_seconds
        )
        if start is not None:
            progress.show_event(Event("start", asdict(start), format_start(start)))
    stop.raise_if_due()


def stopped_error(store: Store, number: int, left: int) -> TryAgain:
    """That a shard was stopped, with so many parts left."""
    return TryAgain(
        f"{store.uri}: shard {number} was stopped with {pluralize(left, 'part')} left. "
        "Run the same command again to resume."
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What parts are drawn with, and how they are finished."""

    store: Store
    plan: Plan
    denoiser: Denoiser
    finish: FinishParts
    progress: Progress
    stop: Stop
    startup: Startup | None

    def batch_size(self, row: ImageRow) -> int:
        """The planned size of a batch with rows of this one's shape."""
        return self.plan.batch_size(row.parameters.width, row.parameters.height)


@dataclass(frozen=True, slots=True)
class DrawnParts:
    """What one attempt at some parts committed after loading.

    `wall_seconds` are those of the clock, `seconds` those of its stages. `abandoned_images` are
    those of parts that were drawn in part when others committed them.
    """

    stopped: bool
    wall_seconds: float
    committed: Sequence[CommittedPart]
    seconds: StageSeconds
    abandoned_images: int
    max_batch_pixels: int | None


class PartWatch:
    """Asks the store before each part, and twice a minute while it is drawn.

    A part that another process has committed is not drawn, or not to its end.
    """

    def __init__(
        self,
        store: Store,
        progress: Progress,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Watch parts of the run in `store`. Draw none once no more `is_wanted`."""
        self.abandoned_images = 0
        self._store = store
        self._progress = progress
        self._is_wanted = is_wanted
        self._is_missing = True
        self._asked_at = 0.0

    def is_missing(self, batch: Batch) -> bool:
        """Whether the batch is to be drawn. Those of one part come one after the other."""
        drawn = batch.rows[0].index_in_part
        if drawn == 0:
            self._is_missing = not self._is_counted(batch.part) and self._is_wanted()
            self._asked_at = time.monotonic()
        elif self._is_missing and time.monotonic() >= self._asked_at + RECHECK_SECONDS:
            self._is_missing = not self._is_counted(batch.part, drawn)
            self._asked_at = time.monotonic()
            if not self._is_missing:
                self.abandoned_images += drawn
        return self._is_missing

    def _is_counted(self, part: Part, drawn: int = 0) -> bool:
        if not self._store.exists(part.key):
            return False
        images = part.rows.num_rows
        self._progress.add_drawn(images - drawn)
        self._progress.add_committed(images)
        return True


def encode_for(store: Store, plan: Plan, progress: Progress) -> FinishParts:
    """What encodes and judges images as a plan asks, without those that were taken down.

    Raises BadInput where the signer's files or a user's check cannot be loaded.
    """
    encoder = OutputEncoder(plan, _forgotten_ids(store))
    return lambda drawn: encode_parts(drawn, encoder, progress)


def _forgotten_ids(store: Store) -> frozenset[str]:
    """The images that were taken down: none is stored again, or competes."""
    return frozenset(read_forgotten(store, read_head(store).commit).to_pylist())


def load_model(
    open_denoiser: Callable[[], Denoiser], parts: Sequence[Part]
) -> tuple[Denoiser, float]:
    """The model with the LoRAs of these parts, and the seconds that it took to load."""
    started = time.perf_counter()
    denoiser = open_denoiser()
    denoiser.load_loras(used_lora_names(parts))
    seconds = time.perf_counter() - started
    observe_stages(load=seconds)
    return denoiser, seconds


def draw_parts(work: Work, parts: Sequence[Part], watch: PartWatch) -> DrawnParts:
    """Draw the parts in this thread; finish and commit them in two others."""
    denoiser = work.denoiser
    batches = [batch for part in parts for batch in split_into_batches(part, work.batch_size)]
    denoiser.pop_times()  # of an earlier attempt with the same model
    denoiser.prefetch_images(row for batch in batches for row in batch.rows)

    recovery = BatchRecovery(
        partial(denoiser.draw, check=_step_check(work)),
        work.batch_size,
        usual_pixels=work.plan.width * work.plan.height,
    )
    rate = PassRate()
    drawn = draw_batches(
        batches, recovery, work.stop, denoiser.set_upcoming, watch.is_missing, rate
    )
    drawn = _run_passes(work, drawn, rate)

    def finish(batches: Iterator[DrawnBatch]) -> Iterator[EncodedPart]:
        return work.finish(_score(work, batches) if denoiser.passes is None else batches)

    started = time.perf_counter()
    stopped, committed, waits = run_pipeline(drawn, finish, work.store, work.progress, work.stop)
    wall_seconds = time.perf_counter() - started
    seconds = sum((part.seconds for part in committed), denoiser.pop_times() + waits)
    abandoned = watch.abandoned_images
    return DrawnParts(stopped, wall_seconds, committed, seconds, abandoned, recovery.max_pixels)


def run_pipeline(
    drawn: Iterator[DrawnBatch],
    finish: FinishParts,
    store: Store,
    progress: Progress,
    stop: Stop,
) -> tuple[bool, Sequence[CommittedPart], StageSeconds]:
    """Draw batches in this thread; finish and commit parts in two others.

    Returns whether drawing was stopped, the parts that were committed, and how long stages waited.
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


def _score(work: Work, drawn: Iterator[DrawnBatch]) -> Iterator[DrawnBatch]:
    """The batches with the scores that the job asks for; as they are where it asks for none."""
    if not work.plan.job.scores:
        return drawn
    left_out = _forgotten_ids(work.store)
    score = partial(score_and_rank, work.plan.job, work.denoiser.scorers, left_out=left_out)
    return score_batches(drawn, score, images_scored_at_once(work.plan))


def _run_passes(work: Work, drawn: Iterator[DrawnBatch], rate: PassRate) -> Iterator[DrawnBatch]:
    """The batches after the passes that the job asks for, of the images that scores have chosen.

    All in the thread that draws, as passes use the model.
    """
    if work.denoiser.passes is None:
        return drawn
    scored = _score(work, drawn)
    # Only winners have passes: of so many images, they fill a batch.
    images_at_once = work.plan.max_batch_size * work.plan.job.candidates
    passes = work.denoiser.passes
    check = work.stop.raise_if_due

    def run_passes(images: Sequence[DrawnImage], rows: Sequence[ImageRow]) -> PassedImages:
        return passes(images, rows, check)

    return pass_batches(scored, run_passes, images_at_once, rate)


def _step_check(work: Work) -> Callable[[], None]:
    """What is called after each denoising step."""
    if work.startup is None:
        return work.stop.raise_if_due
    work.startup.clock.begin_drawing()
    return partial(_after_step, work.stop, work.startup, work.denoiser, work.progress)


def shard_stats(work: Work, number: int, load_seconds: float, attempt: DrawnParts) -> ShardStats:
    """The statistics of an attempt, put together from those of its stages."""
    denoiser = work.denoiser
    ended_at = time.time()
    new_parts = [committed.part for committed in attempt.committed if committed.was_first]
    dropped = [committed.part for committed in attempt.committed if not committed.was_first]
    total = load_seconds + attempt.wall_seconds
    seconds = attempt.seconds + StageSeconds(total=total, load=load_seconds)
    return ShardStats(
        number,
        attempts=1,
        images=count_images(new_parts),
        parts=len(new_parts),
        max_batch_size=work.plan.max_batch_size,
        max_batch_pixels=attempt.max_batch_pixels,
        device=describe_device(denoiser.device),
        seconds=seconds,
        versions=library_versions(work.plan.job),
        busy_share=time_share(seconds.busy + sum(seconds.passes.values()), attempt.wall_seconds),
        peak_memory=process_peak_bytes(denoiser.device),
        compile_mode=denoiser.compiled_pipeline.mode,
        decode_mode=denoiser.vae_decoder.mode,
        start=None if work.startup is None else work.startup.clock.seconds,
        started_at=ended_at - total,
        ended_at=ended_at,
        repeated_images=attempt.abandoned_images + count_images(dropped),
    )
