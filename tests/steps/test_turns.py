"""The seconds of devices, one thing after another."""

from dataclasses import astuple

import pytest

from imagekiln.steps.stats import Seconds
from imagekiln.steps.turns import Turns, turns
from imagekiln.steps.usage import Usage

TOOK = Seconds(total=100.0, load=10.0, compile=5.0, text=6.0, denoise=60.0, decode=10.0, denoise_waits=4.0)


def test_what_is_left_is_the_rest() -> None:
    assert turns(TOOK, Usage()) == Turns(10.0, 5.0, 6.0, 60.0, 10.0, 4.0, 5.0)


@pytest.mark.parametrize("busy", [None, 0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("waits", [0.0, 4.0, 500.0])
def test_turns_add_up_to_all_of_the_time(busy: float | None, waits: float) -> None:
    took = Seconds(total=100.0, load=10.0, text=40.0, denoise=60.0, decode=10.0, denoise_waits=waits)
    found = turns(took, Usage(busy))
    assert min(astuple(found)) >= 0.0
    assert sum(astuple(found)) == pytest.approx(100.0) or busy is None


def test_texts_beside_a_batch_take_no_turn() -> None:
    assert turns(TOOK, Usage(busy=70 / 90)).text == pytest.approx(0.0)
    assert turns(TOOK, Usage(busy=73 / 90)).text == pytest.approx(3.0)
    assert turns(TOOK, Usage(busy=1.0)).text == 6.0
