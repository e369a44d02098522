"""The generate step: the parts of one shard that are missing are drawn, encoded and committed.

While a batch is on the device, the one before it is encoded and the part before that is written.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial

from imagekiln.steps import formats, shard, stages, stats
from imagekiln.steps import plan as plans
from imagekiln.steps.ahead import Waits, ahead, feed
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.device import describe, peak_memory
from imagekiln.steps.encoder import Encoder
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.opening import opened
from imagekiln.steps.pipeline import versions
from imagekiln.steps.plan import Plan
from imagekiln.steps.progress import Progress, Silent
from imagekiln.steps.rescue import Rescue
from imagekiln.steps.rows import ImageRow, image_rows
from imagekiln.steps.shard import Part
from imagekiln.steps.stats import Seconds, ShardStats, timed
from imagekiln.steps.stop import Stop, Stopped
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.timing import Taken

BATCHES_AHEAD = 2
PARTS_AHEAD = 1


def generate(uri: str, number: int, progress: Progress | None = None, stop: Stop | None = None) -> ShardStats | None:
    """Make what is missing of one shard of the run at `uri`; None where nothing was.

    Raises BadInput where run, shard or model are not as planned, TryAgain where it was stopped or storage failed.
    """
    progress, stop = progress or Silent(), stop or Stop()
    store = open_store(uri)
    plan = plans.load(store)
    progress.start(plan.shards[number].images if 0 <= number < len(plan.shards) else 0)
    return make_shard(store, plan, number, loader(store, plan), progress, stop)


def loader(store: Store, plan: Plan) -> Callable[[], Denoiser]:
    """What loads the model of a run, or of a round, when it is first needed, and gives the same one from then on."""
    return cache(lambda: opened(plan, store))


def make_shard(
    store: Store,
    plan: Plan,
    number: int,
    open_denoiser: Callable[[], Denoiser],
    progress: Progress,
    stop: Stop,
) -> ShardStats | None:
    """Make what is missing of one shard with a model that several shards may share."""
    wanted = shard.read(store, plan, number)
    missing = formats.unmade(store, formats.chosen(plan.job), shard.missing(store, wanted))
    progress.found(shard.images(wanted) - shard.images(missing))
    if not missing:
        return None
    if stop.asked_at is not None:  # a model takes minutes to load
        raise _stopped(store, number, len(missing))
    work = _Work(store, plan, Encoder(plan), progress, stop)
    with timed(work.seconds, "load"):
        denoiser = open_denoiser()
        denoiser.load_loras(shard.loras(missing))
    try:
        with stop.finishing():
            work.make(missing, denoiser)
    except Stopped:
        stats.record(store, work.told(number, denoiser))
        raise _stopped(store, number, len(missing) - len(work.made)) from None
    told = work.told(number, denoiser)
    stats.record(store, told)
    return told


def _stopped(store: Store, number: int, left: int) -> TryAgain:
    return TryAgain(f"{store.uri}: shard {number} was stopped with {left} parts left. Run it again.")


class _Work:
    """One attempt at a shard: the stages joined, and what they took."""

    def __init__(self, store: Store, plan: Plan, encoder: Encoder, progress: Progress, stop: Stop) -> None:
        self.seconds = Seconds()
        self.made: list[Part] = []
        self._store, self._encoder, self._progress, self._stop = store, encoder, progress, stop
        self._layout = formats.chosen(plan.job)
        self._device = Taken()
        self._plan = plan
        self._most: int | None = None

    def make(self, missing: list[Part], denoiser: Denoiser) -> None:
        """Make these parts, one after the other."""
        denoiser.announce(row for part in missing for row in image_rows(part.rows))
        rescue = Rescue(partial(denoiser.draw, check=self._stop.check), self._planned)
        drawn, encoded = Waits(), Waits()
        started, compiled = time.perf_counter(), denoiser.compiling.clock.seconds
        denoiser.taken()  # of an attempt before, with the same model
        batches = stages.draw(missing, rescue, self._stop, denoiser.expect)
        try:
            feed(batches, partial(self._finish, waits=encoded), BATCHES_AHEAD, drawn)
        finally:
            self._most = rescue.most
            self.seconds.total = self.seconds.load + time.perf_counter() - started
            self.seconds.compile = denoiser.compiling.clock.seconds - compiled
            stats.note_waits(self.seconds, drawn, encoded)
            self._note(denoiser.taken())

    def _planned(self, row: ImageRow) -> int:
        return self._plan.batch(row.pixels.width, row.pixels.height)

    def _finish(self, pictures: Iterator[stages.Drawn], waits: Waits) -> None:
        """Encode what was drawn and write it, in two threads beside the one that draws."""
        contents = stages.finish(pictures, self._encoder, self._layout, self._progress, self.seconds)
        with closing(ahead(contents, PARTS_AHEAD, waits)) as finished:
            self.made.extend(stages.write(finished, self._store, self._progress, self.seconds))

    def _note(self, taken: Taken) -> None:
        """Write down what the device's time went into."""
        self.seconds.text, self.seconds.denoise = taken.text, taken.denoise
        self.seconds.decode, self.seconds.copy = taken.decode, taken.copy
        self._device = taken

    def told(self, number: int, denoiser: Denoiser) -> ShardStats:
        """The statistics of this attempt."""
        return ShardStats(
            number,
            attempts=1,
            images=shard.images(self.made),
            parts=len(self.made),
            batch=self._plan.largest_batch,
            batch_pixels=self._most,
            device=describe(denoiser.device),
            seconds=self.seconds,
            versions=versions(self._plan.job),
            busy=stats.share(self._device.busy, self.seconds.total - self.seconds.load),
            peak_memory=peak_memory(denoiser.device),
            compiled=denoiser.compiling.how,
            decoded=denoiser.decoding.way,
        )
