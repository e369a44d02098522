"""What limited a run."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.report.bottleneck import Bottleneck, find_bottleneck
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.runs.stats import StageSeconds

BUSY = DeviceUsage(busy=0.97)
FINE = StageSeconds(total=1000.0, load=20.0, denoise=850.0, decode=120.0, encode=500.0, write=100.0)


def _found(used: DeviceUsage = BUSY, /, **changes: float) -> Bottleneck:
    found = find_bottleneck(replace(FINE, **changes), used)
    assert found is not None
    return found


def test_a_busy_device_is_the_limit_as_it_should_be() -> None:
    found = _found()
    assert (found.kind, found.advice) == ("device", "")
    assert "97 % of the time after loading" in found.sentence


def test_a_device_that_computes_little_though_nothing_holds_it_up_is_given_too_little() -> None:
    found = _found(DeviceUsage(busy=0.6))
    assert found.kind == "launching"
    assert "60 %" in found.sentence


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
    found = _found(**changes)
    assert found.kind == limit
    assert share in found.sentence
    assert found.advice


def test_the_larger_of_two_losses_is_named() -> None:
    assert _found(denoise=500.0, load=150.0, denoise_waits=230.0).kind == "encoding"


def test_what_takes_little_is_not_named() -> None:
    assert _found(denoise=790.0, denoise_waits=60.0).kind == "device"


def test_an_older_run_that_told_of_no_device_is_judged_by_its_stages() -> None:
    found = find_bottleneck(StageSeconds(total=100.0, load=2.0, denoise=97.0), DeviceUsage())
    assert found is not None
    assert (
        found.sentence == "The device was the limit, as it should be: it computed 97 % of the time."
    )


def test_no_shard_that_told_is_no_limit() -> None:
    assert find_bottleneck(StageSeconds(), DeviceUsage()) is None
