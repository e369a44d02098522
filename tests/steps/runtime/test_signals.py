"""Requests to stop."""

import os
import signal
from collections.abc import Iterator

import pytest

from imagekiln.steps.runtime.signals import GRACE_SECONDS, Stop, Stopped, stop_on_signals

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


class Recorder:
    """A signal handler that records the signals that reach it."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int, _frame: object) -> None:
        self.numbers.append(number)


@pytest.fixture
def before() -> Iterator[Recorder]:
    """The handler from before the block."""
    handler = Recorder()
    earlier = {number: signal.signal(number, handler) for number in SIGNALS}
    yield handler
    for number, earlier_handler in earlier.items():
        signal.signal(number, earlier_handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_requests_to_stop_and_nothing_else_happens(
    number: signal.Signals, before: Recorder
) -> None:
    with stop_on_signals() as stop:
        requested_before = stop.requested_at
        os.kill(os.getpid(), number)
        assert requested_before is None
        assert stop.requested_at is not None
    assert before.numbers == []


def test_an_immediate_stop_is_raised_by_the_signal_itself(before: Recorder) -> None:
    with pytest.raises(Stopped), stop_on_signals(at_once=True):
        os.kill(os.getpid(), signal.SIGTERM)
    assert before.numbers == []


def test_each_further_ctrl_c_stops_at_once_and_deferred_blocks_too(before: Recorder) -> None:
    with stop_on_signals() as stop, stop.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(2):
            with pytest.raises(Stopped):
                os.kill(os.getpid(), signal.SIGINT)
    assert before.numbers == []


def test_hangup_that_nohup_ignores_stays_ignored(before: Recorder) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_on_signals(at_once=True) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert stop.requested_at is None
    assert before.numbers == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_second_sigterm_after_the_block_does_not_spoil_the_exit_code(before: Recorder) -> None:
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert before.numbers == []


def test_work_continues_after_a_request_while_the_time_suffices() -> None:
    stop = Stop()
    stop.request()
    stop.raise_if_due(GRACE_SECONDS - 5)
    with pytest.raises(Stopped):
        stop.raise_if_due(GRACE_SECONDS + 1)
