"""One attempt at parts of a shard: draw in this thread, finish and commit in two others."""

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
    CommittedPart,
    DrawnBatch,
    EncodedPart,
    Pace,
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
FinishParts = Callable[[Iterator[DrawnBatch]], Iterator[EncodedPart]]


def _after_step(stop: Stop, startup: Startup, denoiser: Denoiser, progress: Progress) -> None:
    """End the start with the first step; after any step, give up if it is time to."""
    if startup.clock.seconds is None:
        synchronized_time(denoiser.device)
        start = startup.clock.end_first_step(
            denoiser.compiled_pipeline.clock.seconds, startup.hash_seconds
        )
        progress.show_event(Event("start", asdict(start), str(start)))
    stop.raise_if_due()


def stopped_error(store: Store, number: int, left: int) -> TryAgain:
    """Error: a shard was stopped with `left` parts remaining."""
    return TryAgain(
        f"{store.uri}: shard {number} was stopped with {pluralize(left, 'part')} left. "
        "Run the same command again to resume."
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that an attempt needs: the run, its model, and how parts are finished."""

    store: Store
    plan: Plan
    denoiser: Denoiser
    finish: FinishParts
    progress: Progress
    stop: Stop

    def batch_size(self, row: ImageRow) -> int:
        """The planned size of a batch with rows of this one's shape."""
        return self.plan.batch_size(row.parameters.width, row.parameters.height)


@dataclass(frozen=True, slots=True)
class DrawnParts:
    """The parts that an attempt committed, and its times."""

    stopped: bool
    wall_seconds: float
    committed: Sequence[CommittedPart]
    seconds: StageSeconds
    max_batch_pixels: int | None


def _is_missing(work: Work, part: Part) -> bool:
    """Return whether to draw a part; count the images of one that another process committed."""
    if not work.store.exists(part.key):
        return True
    work.progress.add_drawn(part.rows.num_rows)
    work.progress.add_committed(part.rows.num_rows)
    return False


def encode_for(store: Store, plan: Plan, progress: Progress) -> FinishParts:
    """Build the encoder of a plan; it skips forgotten images."""
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


def draw_parts(
    work: Work, parts: Sequence[Part], is_wanted: Callable[[], bool] = lambda: True
) -> DrawnParts:
    """Draw the parts in this thread; finish and commit them in two others.

    None is begun that another process has committed, or once no more `is_wanted`.
    """
    denoiser = work.denoiser
    batches = [batch for part in parts for batch in split_into_batches(part, work.batch_size)]
    denoiser.pop_times()  # of an earlier attempt with the same model
    denoiser.prefetch_images(row for batch in batches for row in batch.rows)

    recovery = BatchRecovery(
        partial(denoiser.draw, check=_step_check(work)),
        work.batch_size,
        usual_pixels=work.plan.width * work.plan.height,
    )
    pace = Pace()

    def is_missing(part: Part) -> bool:
        return is_wanted() and _is_missing(work, part)

    drawn = draw_batches(batches, recovery, work.stop, denoiser.set_upcoming, is_missing, pace)
    drawn = _run_passes(work, drawn, pace)

    def finish(batches: Iterator[DrawnBatch]) -> Iterator[EncodedPart]:
        return work.finish(_score(work, batches) if denoiser.passes is None else batches)

    started = time.perf_counter()
    stopped, committed, waits = run_pipeline(drawn, finish, work.store, work.progress, work.stop)
    wall_seconds = time.perf_counter() - started
    seconds = sum((part.seconds for part in committed), denoiser.pop_times() + waits)
    return DrawnParts(stopped, wall_seconds, committed, seconds, recovery.max_pixels)


def run_pipeline(
    drawn: Iterator[DrawnBatch],
    finish: FinishParts,
    store: Store,
    progress: Progress,
    stop: Stop,
) -> tuple[bool, Sequence[CommittedPart], StageSeconds]:
    """Draw batches in this thread; finish and commit parts in two others.

    Returns whether drawing was stopped, the committed parts, and how long stages waited.
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
    """Add the job's scores, if it has any."""
    if not work.plan.job.scores:
        return drawn
    left_out = _forgotten_ids(work.store)
    score = partial(score_and_rank, work.plan.job, work.denoiser.scorers, left_out=left_out)
    return score_batches(drawn, score, images_scored_at_once(work.plan))


def _run_passes(work: Work, drawn: Iterator[DrawnBatch], pace: Pace) -> Iterator[DrawnBatch]:
    """Run the job's passes in the drawing thread, since they may use its model."""
    if work.denoiser.passes is None:
        return drawn
    scored = _score(work, drawn)
    # Only winners have passes: of so many images, they fill a batch.
    images_at_once = work.plan.max_batch_size * work.plan.job.candidates
    passes = work.denoiser.passes
    check = work.stop.raise_if_due

    def run_passes(images: Sequence[DrawnImage], rows: Sequence[ImageRow]) -> PassedImages:
        return passes(images, rows, check)

    return pass_batches(scored, run_passes, images_at_once, pace)


def _step_check(work: Work) -> Callable[[], None]:
    """Return the function to call after each denoising step."""
    startup = work.denoiser.startup
    if startup is None:
        return work.stop.raise_if_due
    startup.clock.begin_drawing()
    return partial(_after_step, work.stop, startup, work.denoiser, work.progress)


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
        start=None if denoiser.startup is None else denoiser.startup.clock.seconds,
        started_at=ended_at - total,
        ended_at=ended_at,
        repeated_images=count_images(dropped),
    )
