"""The generate step: the missing parts of one shard are drawn, encoded and committed."""

from collections.abc import Callable, Iterable
from contextlib import closing

from imagekiln.steps.generate.attempt import (
    Work,
    draw_parts,
    encode_for,
    load_model,
    shard_stats,
    stopped_error,
)
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.device import describe_device, free_memory
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.late_shards import help_late_shards
from imagekiln.steps.generate.meter import Meter
from imagekiln.steps.generate.passes import load_passes
from imagekiln.steps.generate.scores import load_scorers
from imagekiln.steps.job.user_checks import import_entries
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import count_images, missing_parts, read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store

ALL_PARTS = slice(None)


class LazyDenoiser:
    """The model that draws a run or a retry, with its scorers and passes."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        startup: Startup | None = None,
        note_device: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Load nothing yet. `note_device` is called with the device's name after loading."""
        self._store = store
        self._plan = plan
        self._startup = startup
        self._note_device = note_device
        self._denoiser: Denoiser | None = None

    def __call__(self) -> Denoiser:
        """The denoiser, always the same. Raises BadInput, TryAgain as `load_denoiser` does."""
        if self._denoiser is None:
            import_entries(self._plan.job)  # what is missing needs no model to be refused
            denoiser = load_denoiser(self._plan, self._store, startup=self._startup)
            try:
                denoiser.scorers = load_scorers(self._plan, denoiser.device)
                if self._plan.job.passes:
                    denoiser.passes = load_passes(
                        self._plan, self._store, denoiser.device, denoiser
                    )
            except BaseException:
                denoiser.close()
                raise
            self._denoiser = denoiser
            self._note_device(describe_device(self._denoiser.device))
        return self._denoiser

    def close(self) -> None:
        """End the denoiser's threads and free its memory, which reference cycles hold."""
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
    *,
    record: Callable[[ShardStats], None] = lambda _: None,
    parts: slice = ALL_PARTS,
) -> ShardStats | None:
    """Make what is missing of one shard with a model that several shards may share.

    `record` is called with the statistics. `parts` are those to consider.
    """
    shard = read_shard(store, plan, number)[parts]
    missing = missing_parts(store, shard)
    progress.add_existing(count_images(shard) - count_images(missing))
    if not missing:
        return None
    if stop.requested_at is not None:  # loading a model takes minutes
        raise stopped_error(store, number, len(missing))

    # Before the model is loaded: it may lack a key to sign with.
    finish = encode_for(store, plan, progress)
    denoiser, load_seconds = load_model(open_denoiser, missing)

    work = Work(store, plan, denoiser, finish, progress, stop)
    attempt = draw_parts(work, missing)
    stats = shard_stats(work, number, load_seconds, attempt)
    record(stats)
    if attempt.stopped:
        left = [part for part in missing if not store.exists(part.key)]
        raise stopped_error(store, number, len(left))
    return stats


def generate_shards(
    store: Store, plan: Plan, shards: Iterable[int], meter: Meter, stop: Stop
) -> None:
    """Make these shards with one loaded model. Raises as `generate_shard` does."""
    with closing(LazyDenoiser(store, plan, note_device=meter.note_device)) as open_denoiser:
        for number in shards:
            generate_shard(
                store, plan, number, open_denoiser, meter.progress, stop, record=meter.add_stats
            )


def generate_and_help(
    store: Store,
    plan: Plan,
    number: int,
    open_denoiser: Callable[[], Denoiser],
    meter: Meter,
    stop: Stop,
    *,
    helps: bool = True,
) -> ShardStats | None:
    """Make what is missing of one shard, then help late shards if `helps`.

    It helps only if no shard is pending and the model is loaded. Returns the shard's own
    statistics.
    """
    stats = generate_shard(
        store,
        plan,
        number,
        open_denoiser,
        meter.progress,
        stop,
        record=meter.add_stats,
    )
    meter.note_done(number)
    if helps and len(plan.shards) > 1 and stats is not None:  # else no model is loaded
        with stop.deferred():  # the shard is done: a request to stop is no failure
            help_late_shards(store, plan, number, open_denoiser(), meter, stop)
    return stats
