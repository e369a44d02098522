"""The seconds of devices, one thing after another."""

from dataclasses import astuple

import pytest

from imagekiln.steps.aggregate.report.time_use import TimeBreakdown, break_down_time
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.runs.stats import StageSeconds

TOOK = StageSeconds(
    total=100.0, load=10.0, compile=5.0, text=6.0, denoise=60.0, decode=10.0, denoise_waits=4.0
)


def test_what_is_left_is_the_rest() -> None:
    assert break_down_time(TOOK, DeviceUsage()) == TimeBreakdown(
        10.0, 5.0, 6.0, 60.0, 10.0, 4.0, 5.0
    )


@pytest.mark.parametrize("busy", [None, 0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("waits", [0.0, 4.0, 500.0])
def test_turns_add_up_to_all_of_the_time(busy: float | None, waits: float) -> None:
    took = StageSeconds(
        total=100.0, load=10.0, text=40.0, denoise=60.0, decode=10.0, denoise_waits=waits
    )
    found = break_down_time(took, DeviceUsage(busy))
    assert min(astuple(found)) >= 0.0
    assert sum(astuple(found)) == pytest.approx(100.0) or busy is None


def test_texts_beside_a_batch_take_no_turn() -> None:
    assert break_down_time(TOOK, DeviceUsage(busy=70 / 90)).text == pytest.approx(0.0)
    assert break_down_time(TOOK, DeviceUsage(busy=73 / 90)).text == pytest.approx(3.0)
    assert break_down_time(TOOK, DeviceUsage(busy=1.0)).text == 6.0
