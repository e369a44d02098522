"""The stages in which shards are made, each with the models that it needs and no others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Protocol

from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.draw_stage import draw_shard
from imagekiln.steps.generate.lazy_denoiser import LazyDenoiser, LazyPasses
from imagekiln.steps.generate.messages import PASSING
from imagekiln.steps.generate.pass_stage import pass_shard
from imagekiln.steps.generate.step import ALL_PARTS, generate_shard
from imagekiln.steps.job.passes import Stage
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import ShardStats, add_attempt
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store


class MakeShard(Protocol):
    """Does what is missing of a stage of one shard."""

    def __call__(
        self,
        number: int,
        *,
        progress: Progress,
        stop: Stop,
        startup: Startup | None = None,
        parts: slice = ALL_PARTS,
        record: Callable[[ShardStats], None] | None = None,
    ) -> ShardStats | None:
        """The statistics; None where nothing was missing. Raises as `generate_shard` does."""


@contextmanager
def open_stage(
    stage: Stage,
    store: Store,
    plan: Plan,
    startup: Startup | None = None,
    note_device: Callable[[str], None] = lambda _: None,
) -> Iterator[MakeShard]:
    """What does this stage of shards. Its models are loaded when needed, and freed in the end.

    `startup` is what a new process began. `note_device` is called with the name of the device once
    a model is loaded.
    """
    if stage == "passes":
        with closing(LazyPasses(store, plan, startup, note_device)) as open_passes:
            yield partial(pass_shard, store, plan, open_passes=open_passes)
    else:
        make = draw_shard if stage == "draw" else generate_shard
        with closing(LazyDenoiser(store, plan, startup, note_device)) as open_denoiser:
            yield partial(make, store, plan, open_denoiser=open_denoiser)


def make_in_stages(
    store: Store,
    plan: Plan,
    shards: Sequence[int],
    stages: Sequence[Stage],
    progress: Progress,
    stop: Stop,
    startup: Startup | None = None,
    timed_startup: Startup | None = None,
    note_device: Callable[[str], None] = lambda _: None,
) -> ShardStats | None:
    """Do these stages of all these shards, one stage after another, in this process.

    `progress` has been started. `startup` is what a new process began, and `timed_startup` the same
    where its start is to be logged and in the statistics. Returns those of the last shard of which
    anything was missing. Raises as `generate_shard` does.
    """
    stats: ShardStats | None = None
    for place, stage in enumerate(stages):
        if place:
            progress.show_event(PASSING)
            progress.start(sum(plan.shards[number].images for number in shards))
            startup = timed_startup = None  # the first model has closed it
        with open_stage(stage, store, plan, startup, note_device) as make_shard:
            for number in shards:
                made = make_shard(number, progress=progress, stop=stop, startup=timed_startup)
                stats = _join_stats(stats, made)
    return stats


def _join_stats(earlier: ShardStats | None, made: ShardStats | None) -> ShardStats | None:
    if made is None:
        return earlier
    same_shard = earlier is not None and earlier.shard == made.shard
    return add_attempt(earlier if same_shard else None, made)
