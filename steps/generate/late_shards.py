"""Help with late shards, in a process that has finished its own.

They are looked for once: toward the end of a run, when none waits for a device any more.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from imagekiln.steps.errors import KilnError
from imagekiln.steps.generate.attempt import (
    Work,
    draw_parts,
    encode_for,
    load_model,
    shard_stats,
)
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.meter import Meter
from imagekiln.steps.runs.attempts import read_begun
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import Event, NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store

MAX_EXAMINED = 512  # shards from the last on: they are begun in about the order of their numbers


def find_late_shards(store: Store, plan: Plan, own: int) -> list[int]:
    """Find shards that others have begun and not finished, in an order that `own` decides.

    Finds none while a shard is pending: its pod needs the device. Looks at the last 512 shards.
    """
    last = range(max(0, len(plan.shards) - MAX_EXAMINED), len(plan.shards))
    numbers = [number for number in reversed(last) if number != own]
    is_done = read_begun(store, plan, frozenset(numbers))
    if any(number not in is_done for number in numbers):
        return []
    late = [number for number in numbers if not is_done[number]]
    random.Random(own).shuffle(late)  # noqa: S311  # not a secret
    return late


def parts_to_help_with(store: Store, plan: Plan, shard: int, own: int) -> Sequence[Part]:
    """List the missing parts of a late shard from the last on, the first one as `own` decides.

    So its own process and several helpers seldom make the same part.
    """
    parts = missing_parts(store, read_shard(store, plan, shard))[::-1]
    first = random.Random(own).randrange(max(1, len(parts)))  # noqa: S311  # not a secret
    return [*parts[first:], *parts[:first]]


def help_late_shards(
    store: Store,
    plan: Plan,
    own: int,
    denoiser: Denoiser,
    meter: Meter,
    stop: Stop,
) -> None:
    """Make parts of late shards with the model of shard `own`, in whose statistics they count.

    Failures are only reported: the processes of those shards will meet them too.
    """
    try:
        late_shards = find_late_shards(store, plan, own)
        if not late_shards:
            return
        # The images of late shards are in the count of their own processes.
        uncounted = NoProgress()
        finish = encode_for(store, plan, uncounted)
        work = Work(store, plan, denoiser, finish, uncounted, stop)
        for late in late_shards:
            if stop.requested_at is not None:
                return
            parts = parts_to_help_with(store, plan, late, own)
            if parts:
                sentence = f"Shard {own} is done. Its process helps with shard {late}."
                meter.progress.show_event(Event("help", {}, sentence))
                meter.add_stats(_make_late_parts(work, own, parts))
    except KilnError as error:
        meter.progress.show_event(Event("help_failed", {}, f"Helps no other shard: {error}"))


def _make_late_parts(work: Work, own: int, parts: Sequence[Part]) -> ShardStats:
    """Make parts of a late shard that nobody has made; the statistics for shard `own`."""
    _, load_seconds = load_model(lambda: work.denoiser, parts)
    attempt = draw_parts(work, parts, lambda: work.stop.requested_at is None)
    stats = shard_stats(work, own, load_seconds, attempt)
    return replace(stats, attempts=0, helped_images=stats.images)
