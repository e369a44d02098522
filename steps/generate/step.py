"""The generate step: the missing parts of one shard are drawn, encoded and committed.

While the device draws a batch, the batch before it is encoded and the part before that is written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, DenoiserStats, load_denoiser
from imagekiln.steps.generate.diffusion.device import (
    describe_device,
    device_uuid,
    free_memory,
    synchronized_time,
)
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.encoder import OutputEncoder
from imagekiln.steps.generate.late_shards import (
    can_help,
    find_late_shards,
    parts_to_help_with,
    shard_shapes,
)
from imagekiln.steps.generate.part_watch import PartWatch
from imagekiln.steps.generate.passes import load_passes
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.generate.scores import images_scored_at_once, load_scorers, score_and_rank
from imagekiln.steps.generate.stages import (
    CommittedPart,
    DrawnBatch,
    PassRate,
    commit_parts,
    draw_batches,
    encode_parts,
    pass_batches,
    score_batches,
    split_into_batches,
)
from imagekiln.steps.job.prices import is_spot_node
from imagekiln.steps.runs.forgotten import read_forgotten
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import DrawnImage, ImageRow, PassedImages
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import (
    count_images,
    missing_parts,
    read_shard,
    used_lora_names,
)
from imagekiln.steps.runs.start_times import format_start
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    add_queue_waits,
    add_seconds,
    record_stats,
    time_share,
)
from imagekiln.steps.runs.work_marks import claim_part, mark_begun, mark_finished
from imagekiln.steps.runtime.energy import EnergyCounter, joules_between
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.metrics import observe_stages
from imagekiln.steps.runtime.prefetch import QueueWaits, consume_in_thread, prefetch
from imagekiln.steps.runtime.progress import Event, NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop, Stopped
from imagekiln.steps.storage.store import Store

MAX_QUEUED_BATCHES = 2
MAX_QUEUED_PARTS = 1
ALL_PARTS = slice(None)


class LazyDenoiser:
    """The model of a run or round, which is loaded when it is first needed."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        startup: Startup | None = None,
        note_device: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Load nothing yet. `startup` is what a new process began.

        `note_device` is called with the name of the device once the model is loaded.
        """
        self._store = store
        self._plan = plan
        self._startup = startup
        self._note_device = note_device
        self._denoiser: Denoiser | None = None

    def __call__(self) -> Denoiser:
        """The denoiser, always the same. Raises BadInput, TryAgain as `load_denoiser` does."""
        if self._denoiser is None:
            denoiser = load_denoiser(self._plan, self._store, startup=self._startup)
            try:
                denoiser.scorers = load_scorers(self._plan, denoiser.device)
                if self._plan.job.passes:
                    denoiser.passes = load_passes(self._plan, denoiser, self._store)
            except BaseException:
                denoiser.close()
                raise
            self._denoiser = denoiser
            self._note_device(describe_device(self._denoiser.device))
        return self._denoiser

    def close(self) -> None:
        """End the denoiser's threads and free its memory, where it was loaded.

        A model is in reference cycles: the next one in this process would come on top of it.
        """
        if self._denoiser is not None:
            self._denoiser.close()
            self._denoiser = None
            free_memory()


def generate_shard(
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
    """Make what is missing of one shard with a model that several shards may share.

    With `startup`, which a new process began, its start is logged and in the statistics. `parts`
    are those to consider, by default all. The statistics are added to the shard's in `store`, or
    passed to `record` where several processes make parts of it.
    """
    shard = read_shard(store, plan, number)[parts]
    missing = recover_parts(store, format_of(plan.job), missing_parts(store, shard))
    progress.add_existing(count_images(shard) - count_images(missing))
    if not missing:
        return None
    if stop.requested_at is not None:  # loading a model takes minutes
        raise _stopped_error(store, number, len(missing))

    forgotten = read_forgotten(store, plan).to_pylist()
    encoder = OutputEncoder(
        plan, forgotten
    )  # before the model is loaded: it may lack a key to sign with
    started = time.perf_counter()
    denoiser = open_denoiser()
    denoiser.load_loras(used_lora_names(missing))
    load_seconds = time.perf_counter() - started
    observe_stages(load=load_seconds)

    work = _Work(store, plan, denoiser, encoder, progress, stop, startup)
    watch = PartWatch(store, progress)
    attempt = _make_parts(work, missing, watch)
    stats = _shard_stats(work, number, load_seconds, attempt)
    if record is None:
        record_stats(store, stats)
    else:
        record(stats)
    if attempt.stopped:
        left = [part for part in missing if not store.exists(part.key)]
        raise _stopped_error(store, number, len(left))
    return stats


def generate_and_help(
    store: Store,
    plan: Plan,
    number: int,
    open_denoiser: Callable[[], Denoiser],
    progress: Progress,
    stop: Stop,
    startup: Startup | None = None,
) -> ShardStats | None:
    """Make what is missing of one shard, then parts of shards that other processes are late with.

    The latter where the job allows it, no shard waits for a device, and the model is loaded.
    Returns the statistics of the shard itself.
    """
    if not can_help(plan):
        return generate_shard(store, plan, number, open_denoiser, progress, stop, startup)
    mark_begun(store, number)
    stats = generate_shard(store, plan, number, open_denoiser, progress, stop, startup)
    mark_finished(store, number)
    if stats is not None:  # where nothing was missing, no model is loaded
        with stop.deferred():  # the shard is done: a request to stop is no failure
            _help_late_shards(store, plan, number, open_denoiser(), progress, stop, startup)
    return stats


def _help_late_shards(
    store: Store,
    plan: Plan,
    own: int,
    denoiser: Denoiser,
    progress: Progress,
    stop: Stop,
    startup: Startup | None,
) -> None:
    """Make parts of late shards with the model of shard `own`, in whose statistics they count.

    What goes wrong with them is only reported: the processes of those shards will meet it too.
    """
    try:
        late_shards = find_late_shards(store, plan, own)
        if not late_shards:
            return
        shapes = None
        # To compile a model for another shape may take longer than what is left of the run.
        if denoiser.compiled_pipeline.mode != "none":
            shapes = shard_shapes(store, plan, own)
        # The images of late shards are in the count of their own processes.
        uncounted = NoProgress()
        encoder = OutputEncoder(plan, read_forgotten(store, plan).to_pylist())
        work = _Work(store, plan, denoiser, encoder, uncounted, stop, startup)
        for late in late_shards:
            if stop.requested_at is not None:
                return
            parts = parts_to_help_with(store, plan, late, shapes)
            if parts:
                sentence = f"Shard {own} is done. Its process helps with shard {late}."
                progress.show_event(Event("help", {}, sentence))
                _make_late_parts(work, own, parts)
    except KilnError as error:
        progress.show_event(Event("help_failed", {}, f"Helps no other shard: {error}"))


def _make_late_parts(work: "_Work", own: int, parts: Sequence[Part]) -> None:
    """Make those of a late shard's parts that no other helper makes."""
    started = time.perf_counter()
    work.denoiser.load_loras(used_lora_names(parts))
    load_seconds = time.perf_counter() - started

    watch = PartWatch(work.store, work.progress, partial(_claim_part, work.store, work.stop, own))
    attempt = _make_parts(work, parts, watch)
    stats = _shard_stats(work, own, load_seconds, attempt)
    stats = replace(stats, attempts=0, helped_images=stats.images)
    record_stats(work.store, stats)


def _claim_part(store: Store, stop: Stop, helper: int, part: Part) -> bool:
    return stop.requested_at is None and claim_part(store, part, helper)


def _after_step(stop: Stop, startup: Startup, denoiser: Denoiser, progress: Progress) -> None:
    """End the start with the first step; after any step, give up where it is time to."""
    if not startup.clock.has_ended:
        synchronized_time(denoiser.device)
        weights = startup.weights
        start = startup.clock.end_first_step(
            denoiser.compiled_pipeline.clock.seconds,
            weights.hash_seconds,
            weights.read_ahead_seconds,
        )
        if start is not None:
            progress.show_event(Event("start", asdict(start), format_start(start)))
    stop.raise_if_due()


def _stopped_error(store: Store, number: int, left: int) -> TryAgain:
    return TryAgain(
        f"{store.uri}: shard {number} was stopped with {pluralize(left, 'part')} left. "
        "Run the same command again to resume."
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What parts are made of and with."""

    store: Store
    plan: Plan
    denoiser: Denoiser
    encoder: OutputEncoder
    progress: Progress
    stop: Stop
    startup: Startup | None

    def batch_size(self, row: ImageRow) -> int:
        """The planned size of a batch with rows of this one's shape."""
        return self.plan.batch_size(row.parameters.width, row.parameters.height)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What one attempt at some parts made, what it took after loading, and whether it was stopped.

    `abandoned_images` are those of parts that were drawn in part when others committed them.
    """

    stopped: bool
    seconds: float
    energy_joules: float | None
    committed: Sequence[CommittedPart]
    abandoned_images: int
    denoiser: DenoiserStats
    max_batch_pixels: int | None
    drawn_waits: QueueWaits
    encoded_waits: QueueWaits


def _make_parts(work: _Work, parts: Sequence[Part], watch: PartWatch) -> _Attempt:
    """Draw the parts in this thread; encode and commit them in two others."""
    denoiser = work.denoiser
    batches = [batch for part in parts for batch in split_into_batches(part, work.batch_size)]
    denoiser.pop_stats()  # of an earlier attempt with the same model
    denoiser.prefetch_images(row for batch in batches for row in batch.rows)

    drawn_waits = QueueWaits(name="drawn")
    encoded_waits = QueueWaits(name="encoded")
    committed: list[CommittedPart] = []
    recovery = BatchRecovery(partial(denoiser.draw, check=_step_check(work)), work.batch_size)
    rate = PassRate()
    drawn = draw_batches(
        batches, recovery, work.stop, denoiser.set_upcoming, watch.is_missing, rate
    )
    drawn = _run_passes(work, drawn, rate)

    def encode_and_commit(drawn: Iterator[DrawnBatch]) -> None:
        part_format = format_of(work.plan.job)
        if denoiser.passes is None:
            drawn = _score(work, drawn)
        encoded = encode_parts(drawn, work.encoder, part_format, work.progress)
        with closing(prefetch(encoded, MAX_QUEUED_PARTS, encoded_waits)) as ready:
            committed.extend(commit_parts(ready, work.store, work.progress))

    counter = EnergyCounter(device_uuid(denoiser.device))
    energy_before = counter.read_joules()
    started = time.perf_counter()
    stopped = False
    with work.stop.deferred():
        try:
            consume_in_thread(drawn, encode_and_commit, MAX_QUEUED_BATCHES, drawn_waits)
        except Stopped:
            stopped = True
    seconds = time.perf_counter() - started
    energy = joules_between(energy_before, counter.read_joules())
    denoiser_stats = denoiser.pop_stats()
    observe_stages(compile=denoiser_stats.compile_seconds)
    return _Attempt(
        stopped,
        seconds,
        energy,
        committed,
        watch.abandoned_images,
        denoiser_stats,
        recovery.max_pixels,
        drawn_waits,
        encoded_waits,
    )


def _score(work: _Work, drawn: Iterator[DrawnBatch]) -> Iterator[DrawnBatch]:
    """The batches with the scores that the job asks for; as they are where it asks for none."""
    if not work.plan.job.scores:
        return drawn
    score = partial(score_and_rank, work.plan.job, work.denoiser.scorers)
    return score_batches(drawn, score, images_scored_at_once(work.plan))


def _run_passes(work: _Work, drawn: Iterator[DrawnBatch], rate: PassRate) -> Iterator[DrawnBatch]:
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


def _step_check(work: _Work) -> Callable[[], None]:
    """What is called after each denoising step."""
    if work.startup is None:
        return work.stop.raise_if_due
    work.startup.clock.begin_drawing()
    return partial(_after_step, work.stop, work.startup, work.denoiser, work.progress)


def _shard_stats(work: _Work, number: int, load_seconds: float, attempt: _Attempt) -> ShardStats:
    """The statistics of an attempt, put together from those of its stages."""
    denoiser = attempt.denoiser
    startup = work.startup
    ended_at = time.time()
    new_parts = [committed.part for committed in attempt.committed if committed.was_first]
    dropped = [committed.part for committed in attempt.committed if not committed.was_first]
    return ShardStats(
        number,
        attempts=1,
        images=count_images(new_parts),
        parts=len(new_parts),
        max_batch_size=work.plan.max_batch_size,
        max_batch_pixels=attempt.max_batch_pixels,
        device=denoiser.device,
        seconds=_stage_seconds(load_seconds, attempt),
        versions=library_versions(work.plan.job),
        busy_share=time_share(denoiser.times.busy + _pass_seconds(attempt), attempt.seconds),
        peak_memory=denoiser.peak_memory,
        compile_mode=denoiser.compile_mode,
        decode_mode=denoiser.decode_mode,
        start=None if startup is None else startup.clock.seconds,
        started_at=ended_at - load_seconds - attempt.seconds,
        ended_at=ended_at,
        spot=is_spot_node(),
        energy_joules=attempt.energy_joules,
        repeated_images=attempt.abandoned_images + count_images(dropped),
    )


def _stage_seconds(load_seconds: float, attempt: _Attempt) -> StageSeconds:
    times = attempt.denoiser.times
    device_waits = sum(part.wait_seconds for part in attempt.committed)
    seconds = StageSeconds(
        total=load_seconds + attempt.seconds,
        load=load_seconds,
        compile=attempt.denoiser.compile_seconds,
        text=times.text,
        denoise=times.denoise,
        decode=times.decode,
        safety=times.safety,
        copy=times.copy,
        encode=sum(part.encode_seconds for part in attempt.committed),
        score=sum(part.score_seconds for part in attempt.committed),
        write=sum(part.write_seconds for part in attempt.committed),
        passes=_sum_passes(attempt.committed),
        encode_waits=device_waits,
    )
    add_queue_waits(seconds, attempt.drawn_waits, attempt.encoded_waits)
    return seconds


def _sum_passes(parts: Sequence[CommittedPart]) -> dict[str, float]:
    """The seconds of each pass, by name."""
    seconds: dict[str, float] = {}
    for part in parts:
        seconds = add_seconds(seconds, part.pass_seconds)
    return seconds


def _pass_seconds(attempt: _Attempt) -> float:
    return sum(_sum_passes(attempt.committed).values())
