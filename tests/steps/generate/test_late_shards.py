"""Processes that are done with their own shard make parts of those that are late."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.step import generate_and_help
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.attempts import AttemptFile, Spent, merge_stats, read_attempts
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import models
from tests.runs import PROMPTS, planned
from tests.s3 import S3_AMONG_SLOW
from tests.texts import chance

SHARDS = 3


class Device(Denoiser):
    """Draws noise that follows from the image's id, after what `wait` does."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        super().__init__(models.pipe("sd"))
        self.drawn = Counter[str]()
        self._wait = wait

    def draw(
        self,
        rows: Sequence[ImageRow],
        size: int,  # noqa: ARG002
        check: Callable[[], None],  # noqa: ARG002
    ) -> Sequence[DrawnImage]:
        self._wait()
        self.drawn.update(row.image_id for row in rows)
        return [_noise(row) for row in rows]


def _noise(row: ImageRow) -> DrawnImage:
    numbers = np.random.default_rng(int(row.image_id, 16))
    side = (row.parameters.height, row.parameters.width, 3)
    return DrawnImage(row.index_in_part, numbers.integers(0, 256, side, dtype=np.uint8))


@pytest.fixture
def run(tmp_path: Path) -> PlanResult:
    """A planned run: two shards of 8 images and one of 4, in parts of 2."""
    return _planned(tmp_path)


def _planned(folder: Path, output: str = "") -> PlanResult:
    output = output or str(folder / "out")
    return planned(folder, output, run_id="run", part={"images": 2}, batch={"images": 1})


def _parts(run: PlanResult) -> dict[str, bytes]:
    store = open_store(run.uri)
    shards = range(len(run.plan.shards))
    keys = [part.key for shard in shards for part in read_shard(store, run.plan, shard)]
    return {key: store.read(key) for key in keys}


def _images(run: PlanResult, shard: int) -> set[str]:
    parts = read_shard(open_store(run.uri), run.plan, shard)
    return {name for part in parts for name in part.rows["image_id"].to_pylist()}


def _generate(
    run: PlanResult,
    shard: int,
    device: Device,
    stop: Stop | None = None,
    *,
    helps: bool = True,
) -> None:
    opened = open_run(run.uri)
    stop = stop or Stop()
    with meter_attempt(opened, run.plan, NoProgress(), stop, shards=[shard]) as meter:
        generate_and_help(opened.store, run.plan, shard, lambda: device, meter, stop, helps=helps)


def _begin(run: PlanResult, shard: int, *, is_done: bool = False) -> None:
    """Leave the attempt of a process that has begun a shard, and nothing else."""
    attempt = AttemptFile(open_store(run.uri), run.plan, shard)
    if is_done:
        attempt.note_done(shard)
    attempt.write(Spent(attempts=1))


def _stats(run: PlanResult) -> dict[int, ShardStats]:
    return {each.shard: each for each in merge_stats(read_attempts(open_store(run.uri)))}


def _undisturbed(folder: Path) -> dict[str, bytes]:
    """The parts that the run has where nobody helps anybody."""
    alone = _planned(folder)
    for shard in range(len(alone.plan.shards)):
        _generate(alone, shard, Device(), helps=False)
    return _parts(alone)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_late_the_parts_are_the_same(seed: int, run: PlanResult, tmp_path: Path) -> None:
    dice = chance(seed)

    def pauses(most: float) -> Callable[[], None]:
        own = chance(dice.randrange(10**6))
        return lambda: time.sleep(own.uniform(0, most))

    devices = [Device(pauses(dice.choice((0.0, 0.02, 0.2)))) for _ in range(SHARDS)]
    threads = [
        threading.Thread(target=_generate, args=(run, shard, device))
        for shard, device in enumerate(devices)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert _parts(run) == _undisturbed(tmp_path / "alone")
    aggregate(run.uri)
    assert verify(run.uri).images == len(PROMPTS)
    recorded = _stats(run).values()
    assert sum(shard.images for shard in recorded) == len(PROMPTS)
    drawn = sum((device.drawn for device in devices), Counter[str]())
    assert sum(shard.repeated_images for shard in recorded) <= drawn.total() - len(PROMPTS)


@S3_AMONG_SLOW
def test_a_process_that_is_done_makes_what_a_stuck_one_does_not(
    tmp_path: Path, store_uri: str
) -> None:
    run = _planned(tmp_path, store_uri)
    _generate(run, 2, Device())
    resumed = threading.Event()
    at_work = threading.Event()

    def hang() -> None:
        at_work.set()
        assert resumed.wait(60)

    stuck = Device(hang)
    owner = threading.Thread(target=_generate, args=(run, 0, stuck))
    owner.start()
    assert at_work.wait(60)
    helper = Device()
    _generate(run, 1, helper)

    store = open_store(run.uri)
    assert not missing_parts(store, read_shard(store, run.plan, 0))
    resumed.set()
    owner.join()
    # The owner was at its first part. It found the others made, and dropped what it had.
    first_part = read_shard(store, run.plan, 0)[0].rows["image_id"].to_pylist()
    assert set(stuck.drawn) <= set(first_part)
    stats = _stats(run)[1]
    assert (stats.images, stats.helped_images, stats.attempts) == (16, 8, 1)
    late = _stats(run)[0]
    assert (late.images, late.repeated_images) == (0, stuck.drawn.total())
    assert aggregate(run.uri).throughput.median > 0


def test_no_device_is_kept_from_a_shard_that_waits_for_one(run: PlanResult) -> None:
    _begin(run, 0)  # and shard 2 waits
    device = Device()
    _generate(run, 1, device)
    assert set(device.drawn) == _images(run, 1)


def test_a_helper_s_failure_is_not_its_shard_s(run: PlanResult) -> None:
    store = open_store(run.uri)
    _begin(run, 0)
    _begin(run, 2, is_done=True)
    own = _images(run, 1)

    class Failing(Device):
        def draw(
            self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
        ) -> Sequence[DrawnImage]:
            if rows[0].image_id not in own:
                raise TryAgain("the device failed")
            return super().draw(rows, size, check)

    _generate(run, 1, Failing())
    assert not missing_parts(store, read_shard(store, run.plan, 1))


def test_a_helper_that_is_asked_to_stop_ends_well_after_its_part(run: PlanResult) -> None:
    store = open_store(run.uri)
    _begin(run, 0)
    _begin(run, 2, is_done=True)
    own = _images(run, 1)
    stop = Stop(immediate=True)

    class Stopping(Device):
        def draw(
            self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
        ) -> Sequence[DrawnImage]:
            if rows[0].image_id not in own:
                stop.request()
            return super().draw(rows, size, check)

    _generate(run, 1, Stopping(), stop)
    missing = missing_parts(store, read_shard(store, run.plan, 0))
    assert len(missing) == 3  # of four: the one at hand was finished, none was begun
