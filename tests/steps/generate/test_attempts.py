"""What is left of each process that worked on a run: complete, stopped, failed or killed."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate import meter as metering
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.attempts import Attempt, AttemptFile, read_attempts
from imagekiln.steps.runs.run import Run, open_run
from imagekiln.steps.runs.stats import ShardStats, StageSeconds
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop, Stopped
from tests.runs import planned, stats_of


@pytest.fixture
def run(tmp_path: Path) -> PlanResult:
    """A planned run."""
    return planned(tmp_path, str(tmp_path / "out"), price_per_hour=2.0)


def shard_stats(shard: int, images: int) -> ShardStats:
    """The statistics of images that took a second each."""
    seconds = StageSeconds(total=float(images))
    return ShardStats(shard, 1, images, 1, 4, "cpu", seconds)


def only_attempt(run: Run) -> Attempt:
    """The attempt at a run that has one."""
    (attempt,) = read_attempts(run.store)
    return attempt


@pytest.mark.parametrize(
    ("error", "is_asked", "end"),
    [
        (None, False, "complete"),
        (TryAgain("was stopped"), True, "stopped"),
        (Stopped(), True, "stopped"),  # while the model is loaded
        (TryAgain("storage failed"), False, "failed"),
        (BadInput("another model"), False, "failed"),
    ],
    ids=["complete", "stopped", "stopped at once", "storage", "mistake"],
)
def test_an_attempt_is_there_before_anything_is_drawn_and_says_how_it_ended(
    run: PlanResult, error: BaseException | None, is_asked: bool, end: str
) -> None:
    opened = open_run(run.uri)
    stop = Stop()
    with (
        suppress(TryAgain, BadInput, Stopped),
        meter_attempt(opened, run.plan, NoProgress(), stop, age=30.0) as meter,
    ):
        before = only_attempt(opened)
        assert (before.end, before.spent.ended, before.stats) == (None, 0, ())
        assert before.spent.seconds >= 30
        meter.add_stats(shard_stats(0, 4))
        meter.progress.add_committed(4)
        if is_asked:
            stop.request()
        if error is not None:
            raise error
    after = only_attempt(opened)
    assert (after.end, after.spent.attempts, after.spent.ended) == (end, 1, 1)
    assert after.spent.seconds >= after.spent.useful >= 30
    assert after.spent.cost == pytest.approx(after.spent.seconds / 3600 * 2)
    assert stats_of(run.uri) == shard_stats(0, 4)


def test_a_killed_attempt_has_what_it_wrote_within_a_minute(
    run: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "WRITE_SECONDS", 0.01)
    opened = open_run(run.uri)
    has_written = when_written(monkeypatch, lambda attempt: attempt.spent.useful > 0)
    killed = meter_attempt(opened, run.plan, NoProgress(), Stop(), age=30.0)
    meter = killed.__enter__()  # and never ends
    meter.add_stats(shard_stats(1, 4))
    meter.progress.add_committed(4)
    assert has_written.wait(60)
    found = only_attempt(opened)
    assert (found.end, found.spent.ended) == (None, 0)
    assert found.spent.useful >= 30
    assert stats_of(run.uri, 1) == shard_stats(1, 4)
    meter.close("failed")


def when_written(
    patch: pytest.MonkeyPatch, is_awaited: Callable[[Attempt], bool]
) -> threading.Event:
    """An event that is set once such an attempt is written."""
    write = AttemptFile.write
    written = threading.Event()

    def watched(self: AttemptFile, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]  # those of any call
        if any(map(is_awaited, read_attempts(self._store))):
            written.set()

    patch.setattr(AttemptFile, "write", watched)
    return written


def test_attempts_at_a_shard_add_up_also_those_of_several_devices(run: PlanResult) -> None:
    opened = open_run(run.uri)
    for images in (4, 3):
        with meter_attempt(opened, run.plan, NoProgress(), Stop(), shards=[0], devices=2) as meter:
            meter.add_stats(shard_stats(0, images))
            meter.add_stats(shard_stats(2, 1))
    stats = stats_of(run.uri)
    assert stats is not None
    assert (stats.attempts, stats.images, stats.seconds.total) == (2, 7, 7.0)
    other = stats_of(run.uri, 2)
    assert other is not None
    assert (other.attempts, other.images) == (2, 2)
    spent = [attempt.spent for attempt in read_attempts(opened.store)]
    assert all(each.seconds == pytest.approx(each.useful) for each in spent)
    assert [attempt.devices for attempt in read_attempts(opened.store)] == [2, 2]
