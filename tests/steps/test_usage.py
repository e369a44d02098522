"""How well devices were used."""

import pytest

from imagekiln.steps.stats import Seconds, ShardStats
from imagekiln.steps.usage import Usage, usage


def _told(busy: float | None, total: float, load: float = 0.0, **more: float | int | None) -> ShardStats:
    return ShardStats(0, 1, 10, 1, 8, "cuda", Seconds(total=total, load=load), busy=busy, **more)  # type: ignore[arg-type]


def test_a_shard_counts_by_its_time_after_loading() -> None:
    assert usage([_told(1.0, 110.0, 10.0), _told(0.5, 320.0, 20.0)]).busy == pytest.approx((100 + 150) / 400)


def test_flop_are_a_share_of_what_the_devices_can_do_after_loading() -> None:
    shards = [_told(1.0, 20.0, 10.0, flops=5e15, limit=1e15), _told(1.0, 10.0, flops=2e15, limit=5e14)]
    assert usage(shards).of_limit == pytest.approx(7e15 / (10 * 1e15 + 10 * 5e14))


def test_the_fullest_device_tells_the_peak() -> None:
    assert usage([_told(1.0, 1.0, peak_memory=3), _told(1.0, 1.0, peak_memory=7)]).peak_memory == 7


def test_shards_that_told_nothing_do_not_count() -> None:
    silent = [_told(None, 100.0), _told(None, 100.0, flops=1e12)]  # FLOP, but no limit is known
    assert usage(silent) == Usage() == usage([])
    assert usage([*silent, _told(0.25, 8.0)]).busy == 0.25


def test_a_shard_that_only_loaded_is_no_division_by_nothing() -> None:
    assert usage([_told(0.0, 5.0, 5.0, flops=0.0, limit=1e15)]) == Usage()
