"""The generate step: the missing parts of one shard are drawn, encoded and committed.

While the device draws a batch, the batch before it is encoded and the part before that is written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, DenoiserStats, load_denoiser
from imagekiln.steps.generate.diffusion.device import (
    describe_device,
    device_uuid,
    synchronized_time,
)
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.encoder import OutputEncoder
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.generate.stages import (
    Batch,
    CommittedPart,
    DrawnBatch,
    commit_parts,
    draw_batches,
    encode_parts,
    split_into_batches,
)
from imagekiln.steps.job.prices import is_spot_node
from imagekiln.steps.runs.formats import PartFormat, format_of, recover_parts
from imagekiln.steps.runs.image import ImageRow
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
    record_stats,
    time_share,
)
from imagekiln.steps.runtime.energy import EnergyCounter, joules_between
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.metrics import observe_stages
from imagekiln.steps.runtime.prefetch import QueueWaits, consume_in_thread, prefetch
from imagekiln.steps.runtime.progress import Event, Progress
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
            self._denoiser = load_denoiser(self._plan, self._store, startup=self._startup)
            self._note_device(describe_device(self._denoiser.device))
        return self._denoiser

    def close(self) -> None:
        """End the denoiser's threads, where it was loaded."""
        if self._denoiser is not None:
            self._denoiser.close()


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

    output = _Output(store, OutputEncoder(plan), format_of(plan.job), progress)
    started = time.perf_counter()
    denoiser = open_denoiser()
    denoiser.load_loras(used_lora_names(missing))
    load_seconds = time.perf_counter() - started
    observe_stages(load=load_seconds)

    planned_size = partial(_planned_batch_size, plan)
    batches = [batch for part in missing for batch in split_into_batches(part, planned_size)]
    after_step = stop.raise_if_due
    if startup is not None:
        startup.clock.begin_drawing()
        after_step = partial(_after_step, stop, startup, denoiser, progress)
    recovery = BatchRecovery(partial(denoiser.draw, check=after_step), planned_size)
    counter = EnergyCounter(device_uuid(denoiser.device))
    energy_before = counter.read_joules()
    with stop.deferred():
        attempt = _make_parts(batches, denoiser, recovery, output, stop)

    energy = joules_between(energy_before, counter.read_joules())
    stats = _shard_stats(plan, number, load_seconds, attempt)
    stats = replace(stats, energy_joules=energy)
    if startup is not None:
        stats = replace(stats, start=startup.clock.seconds)
    if record is None:
        record_stats(store, stats)
    else:
        record(stats)
    if attempt.stopped:
        raise _stopped_error(store, number, len(missing) - len(attempt.committed))
    return stats


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


def _planned_batch_size(plan: Plan, row: ImageRow) -> int:
    return plan.batch_size(row.parameters.width, row.parameters.height)


def _stopped_error(store: Store, number: int, left: int) -> TryAgain:
    return TryAgain(
        f"{store.uri}: shard {number} was stopped with {pluralize(left, 'part')} left. "
        "Run the same command again to resume."
    )


@dataclass(frozen=True, slots=True)
class _Output:
    """Where drawn images go, and how."""

    store: Store
    encoder: OutputEncoder
    part_format: PartFormat
    progress: Progress


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What one attempt at a shard made, what it took after loading, and whether it was stopped."""

    stopped: bool
    seconds: float
    committed: Sequence[CommittedPart]
    denoiser: DenoiserStats
    max_batch_pixels: int | None
    drawn_waits: QueueWaits
    encoded_waits: QueueWaits


def _make_parts(
    batches: Sequence[Batch],
    denoiser: Denoiser,
    recovery: BatchRecovery,
    output: _Output,
    stop: Stop,
) -> _Attempt:
    """Draw the batches in this thread; encode and commit their parts in two others."""
    drawn_waits = QueueWaits(name="drawn")
    encoded_waits = QueueWaits(name="encoded")
    committed: list[CommittedPart] = []

    def encode_and_commit(drawn: Iterator[DrawnBatch]) -> None:
        encoded = encode_parts(drawn, output.encoder, output.part_format, output.progress)
        with closing(prefetch(encoded, MAX_QUEUED_PARTS, encoded_waits)) as ready:
            committed.extend(commit_parts(ready, output.store, output.progress))

    denoiser.pop_stats()  # of an earlier attempt with the same model
    denoiser.prefetch_images(row for batch in batches for row in batch.rows)
    drawn = draw_batches(batches, recovery, stop, denoiser.set_upcoming)
    started = time.perf_counter()
    stopped = False
    try:
        consume_in_thread(drawn, encode_and_commit, MAX_QUEUED_BATCHES, drawn_waits)
    except Stopped:
        stopped = True
    seconds = time.perf_counter() - started
    denoiser_stats = denoiser.pop_stats()
    observe_stages(compile=denoiser_stats.compile_seconds)
    return _Attempt(
        stopped,
        seconds,
        committed,
        denoiser_stats,
        recovery.max_pixels,
        drawn_waits,
        encoded_waits,
    )


def _shard_stats(plan: Plan, number: int, load_seconds: float, attempt: _Attempt) -> ShardStats:
    """The statistics of an attempt, put together from those of its stages."""
    denoiser = attempt.denoiser
    ended_at = time.time()
    return ShardStats(
        number,
        attempts=1,
        images=count_images([committed.part for committed in attempt.committed]),
        parts=len(attempt.committed),
        max_batch_size=plan.max_batch_size,
        max_batch_pixels=attempt.max_batch_pixels,
        device=denoiser.device,
        seconds=_stage_seconds(load_seconds, attempt),
        versions=library_versions(plan.job),
        busy_share=time_share(denoiser.times.busy, attempt.seconds),
        peak_memory=denoiser.peak_memory,
        compile_mode=denoiser.compile_mode,
        decode_mode=denoiser.decode_mode,
        started_at=ended_at - load_seconds - attempt.seconds,
        ended_at=ended_at,
        spot=is_spot_node(),
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
        write=sum(part.write_seconds for part in attempt.committed),
        encode_waits=device_waits,
    )
    add_queue_waits(seconds, attempt.drawn_waits, attempt.encoded_waits)
    return seconds
