"""Where a run's time went, and what limited it."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.report.time_use import (
    Bottleneck,
    TimeUse,
    break_down_time,
    find_bottleneck,
    summarize_time_use,
)
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.job.passes import MAX_PASSES
from imagekiln.steps.runs.stats import StageSeconds

TURNS = StageSeconds(
    total=100.0, load=10.0, compile=5.0, text=6.0, denoise=60.0, decode=10.0, denoise_waits=4.0
)


def test_what_is_left_is_the_rest() -> None:
    durations = break_down_time(TURNS, DeviceUsage()).values()
    assert list(durations) == [10.0, 5.0, 6.0, 60.0, 10.0, 4.0, 5.0]


@pytest.mark.parametrize("busy", [None, 0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("waits", [0.0, 4.0, 500.0])
def test_the_breakdown_adds_up_to_all_of_the_time(busy: float | None, waits: float) -> None:
    took = StageSeconds(
        total=100.0, load=10.0, text=40.0, denoise=60.0, decode=10.0, denoise_waits=waits
    )
    result = break_down_time(took, DeviceUsage(busy))
    assert min(result.values()) >= 0.0
    assert sum(result.values()) == pytest.approx(100.0) or busy is None


def test_texts_encoded_during_a_batch_take_no_time_of_their_own() -> None:
    assert break_down_time(TURNS, DeviceUsage(busy=70 / 90))["text"] == pytest.approx(0.0)
    assert break_down_time(TURNS, DeviceUsage(busy=73 / 90))["text"] == pytest.approx(3.0)
    assert break_down_time(TURNS, DeviceUsage(busy=1.0))["text"] == 6.0


TOOK = StageSeconds(
    total=1000.0, load=50.0, compile=20.0, text=10.0, denoise=700.0, decode=100.0, copy=10.0,
    denoise_waits=100.0, encode=400.0, write=30.0,
)  # fmt: skip


def _spent(took: StageSeconds = TOOK, used: DeviceUsage | None = None) -> TimeUse:
    result = summarize_time_use(took, used or DeviceUsage())
    assert result is not None
    return result


def test_sequential_stages_add_up_to_all_of_the_time() -> None:
    shares = {each.name: each.share for each in _spent().sequential}
    assert shares["denoise"] == 0.7
    assert shares["wait"] == 0.1
    assert shares["start and end"] == pytest.approx(0.02)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_concurrent_work_is_listed_apart() -> None:
    assert [(each.name, each.value, each.share) for each in _spent().concurrent] == [
        ("encode and hash", "7 min", 0.4),
        ("write parts", "30 s", 0.03),
        ("copy pixels", "10 s", 0.01),
    ]


def test_texts_encoded_during_a_batch_are_concurrent_work() -> None:
    result = _spent(
        StageSeconds(total=110.0, load=10.0, text=20.0, denoise=80.0, decode=15.0),
        DeviceUsage(busy=0.99),
    )
    shares = {each.name: each.share for each in result.sequential}
    assert shares["encode texts"] == pytest.approx(
        4 / 110
    )  # the device computed for 99 s, 95 of them at pictures
    assert result.concurrent[-1].name == "encode texts, on the device"
    assert result.concurrent[-1].share == pytest.approx(16 / 110)


def test_a_stage_that_took_nothing_has_no_line() -> None:
    result = _spent(StageSeconds(total=100.0, denoise=60.0, decode=40.0))
    assert [each.name for each in result.sequential] == ["denoise", "decode"]


def test_a_run_without_statistics_says_nothing_of_its_time() -> None:
    assert summarize_time_use(StageSeconds(), DeviceUsage()) is None


BUSY = DeviceUsage(busy=0.97)
FINE = StageSeconds(total=1000.0, load=20.0, denoise=850.0, decode=120.0, encode=500.0, write=100.0)


def _bottleneck(used: DeviceUsage = BUSY, /, **changes: float) -> Bottleneck:
    result = find_bottleneck(replace(FINE, **changes), used)  # type: ignore[arg-type]  # of floats
    assert result is not None
    return result


def test_a_busy_device_is_the_limit_as_it_should_be() -> None:
    result = _bottleneck()
    assert (result.kind, result.advice) == ("device", "")
    assert "97 % of the time after loading" in result.sentence


def test_a_device_that_computes_little_though_nothing_holds_it_up_is_given_too_little() -> None:
    result = _bottleneck(DeviceUsage(busy=0.6))
    assert result.kind == "launching"
    assert "60 %" in result.sentence


@pytest.mark.parametrize(
    ("changes", "limit", "share"),
    [
        ({"denoise": 600.0, "denoise_waits": 250.0}, "encoding", "25 %"),
        ({"denoise": 600.0, "denoise_waits": 250.0, "write": 700.0}, "storage", "25 %"),
        ({"denoise": 600.0, "load": 270.0}, "loading", "27 %"),
        ({"denoise": 600.0, "compile": 250.0}, "compiling", "25 %"),
        (
            {"denoise": 600.0, "text": 250.0},
            "texts",
            "23.1 %",
        ),  # the device computed no longer at them
        ({"denoise": 600.0}, "ends", "26 %"),
    ],
)
def test_what_takes_the_most_time_from_the_device_is_named_with_a_remedy(
    changes: dict[str, float], limit: str, share: str
) -> None:
    result = _bottleneck(**changes)
    assert result.kind == limit
    assert share in result.sentence
    assert result.advice


def test_the_larger_of_two_losses_is_named() -> None:
    assert _bottleneck(denoise=500.0, load=150.0, denoise_waits=230.0).kind == "encoding"


def test_what_takes_little_is_not_named() -> None:
    assert _bottleneck(denoise=790.0, denoise_waits=60.0).kind == "device"


def test_a_run_without_device_usage_is_judged_by_its_stages() -> None:
    result = find_bottleneck(StageSeconds(total=100.0, load=2.0, denoise=97.0), DeviceUsage())
    assert result is not None
    assert (
        result.sentence
        == "The device was the limit, as it should be: it computed 97 % of the time."
    )


def test_without_statistics_there_is_no_bottleneck() -> None:
    assert find_bottleneck(StageSeconds(), DeviceUsage()) is None


def test_a_safety_checker_has_a_share_of_its_own_beside_the_batches() -> None:
    result = _spent(StageSeconds(total=100.0, denoise=60.0, decode=40.0, safety=10.0))
    assert [(each.name, each.share) for each in result.sequential] == [
        ("denoise", 0.6),
        ("decode", 0.4),
    ]
    assert ("check safety", 0.1) in [(each.name, each.share) for each in result.concurrent]


def test_each_pass_has_its_share_of_the_time() -> None:
    passes = {f"pass_{number}": 40.0 for number in range(MAX_PASSES)}
    result = summarize_time_use(replace(FINE, denoise=400.0, passes=passes), BUSY)
    assert result is not None
    shares = {row.name: row.share for row in result.sequential}
    assert [shares[f"pass {name}"] for name in passes] == [0.04] * MAX_PASSES
    assert sum(shares.values()) == pytest.approx(1)
