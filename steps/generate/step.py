"""The generate step: generate, encode and commit the missing parts of one shard."""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.generate.attempt import ShardWork
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.device import describe_device, free_memory
from imagekiln.steps.generate.meter import Meter
from imagekiln.steps.generate.passes import load_passes
from imagekiln.steps.generate.scores import load_scorers
from imagekiln.steps.generate.source_images import load_image_source
from imagekiln.steps.job.user_checks import import_entries
from imagekiln.steps.models.facts import WeightsCheck
from imagekiln.steps.runs.attempts import read_begun
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import count_images, missing_parts, read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store

ALL_PARTS = slice(None)
MAX_EXAMINED = 512  # of the last shards: shards begin in about the order of their numbers


class LazyDenoiser:
    """The denoiser of a run or retry with its scorers and passes, loaded on first use."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        weights: WeightsCheck | None = None,
        note_device: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take the plan. `note_device` is called with the device's name after loading."""
        self._store = store
        self._plan = plan
        self._weights = weights
        self._note_device = note_device
        self._denoiser: Denoiser | None = None

    def __call__(self) -> Denoiser:
        """Load the denoiser, or return the loaded one. Raises as `load_image_source`."""
        if self._denoiser is None:
            import_entries(self._plan.job)  # first: a missing function fails before the model loads
            denoiser = load_image_source(self._plan, self._store, self._weights)
            self._denoiser = denoiser  # before scorers and passes, so that `close` frees it
            denoiser.scorers = load_scorers(self._plan, denoiser.device)
            if self._plan.job.passes:
                denoiser.passes = load_passes(self._plan, self._store, denoiser.device, denoiser)
            self._note_device(describe_device(denoiser.device))
        return self._denoiser

    def close(self) -> None:
        """Stop the denoiser's threads and free its memory, which reference cycles hold."""
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
    """Generate the missing parts of one shard; return None if there are none.

    Several shards may share the denoiser. `record` is called with the statistics. Only the parts of
    the slice `parts` are considered.
    """
    shard = read_shard(store, plan, number)[parts]
    missing = missing_parts(store, shard)
    progress.add_existing(count_images(shard) - count_images(missing))
    if not missing:
        return None
    stopped = stop.requested_at is not None  # loading a model takes minutes
    stats = None
    if not stopped:
        work = ShardWork(store, plan, open_denoiser, progress, stop)
        stats, stopped = work.make_parts(number, missing)
        record(stats)
    if stopped:
        left = sum(not store.exists(part.key) for part in missing)
        raise TryAgain(
            f"{store.uri}: shard {number} was stopped with {pluralize(left, 'part')} left. "
            "Run the same command again to resume."
        )
    return stats


def generate_shards(
    store: Store, plan: Plan, shards: Iterable[int], meter: Meter, stop: Stop
) -> None:
    """Generate these shards with one loaded model. Raises as `generate_shard`."""
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
    """Generate the missing parts of one shard, then help late shards if `helps`.

    It helps only if no shard is pending and the model is loaded. Returns the statistics of the
    shard alone.
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
            help_late_shards(store, plan, number, open_denoiser, meter, stop)
    return stats


def help_late_shards(
    store: Store,
    plan: Plan,
    own: int,
    open_denoiser: Callable[[], Denoiser],
    meter: Meter,
    stop: Stop,
) -> None:
    """Generate parts of late shards, counted in the statistics of shard `own`.

    Failures are only reported: the processes of the late shards will meet them too.
    """
    try:
        for late in find_late_shards(store, plan, own):
            parts = parts_to_help_with(store, plan, late, own)
            if not parts or stop.requested_at is not None:
                continue
            sentence = f"Shard {own} is done. Its process helps with shard {late}."
            meter.progress.show_event("help", sentence)
            # The processes of late shards count their images.
            work = ShardWork(store, plan, open_denoiser, NoProgress(), stop)
            stats, _ = work.make_parts(own, parts, lambda: stop.requested_at is None)
            meter.add_stats(replace(stats, attempts=0, helped_images=stats.images))
    except KilnError as error:
        meter.progress.show_event("help_failed", f"Helps no other shard: {error}")


def find_late_shards(store: Store, plan: Plan, own: int) -> list[int]:
    """Find shards that other processes have begun and not finished, in an order seeded by `own`.

    Looks at the last 512 shards. Finds none while a shard is pending, since its pod needs the
    device.
    """
    last = range(max(0, len(plan.shards) - MAX_EXAMINED), len(plan.shards))
    numbers = [number for number in reversed(last) if number != own]
    is_done = read_begun(store, plan, frozenset(numbers))
    if len(is_done.keys() & numbers) < len(numbers):
        return []
    late = [number for number in numbers if not is_done[number]]
    random.Random(own).shuffle(late)  # noqa: S311  # not a secret
    return late


def parts_to_help_with(store: Store, plan: Plan, shard: int, own: int) -> Sequence[Part]:
    """List the missing parts of a late shard in reverse, from a start that is seeded by `own`.

    Its process and its helpers therefore seldom generate the same part.
    """
    parts = missing_parts(store, read_shard(store, plan, shard))[::-1]
    first = random.Random(own).randrange(max(1, len(parts)))  # noqa: S311  # not a secret
    return [*parts[first:], *parts[:first]]
