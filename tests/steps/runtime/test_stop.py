"""Being asked to stop."""

import math
import os
import signal
import time
from collections.abc import Iterator

import pytest

from imagekiln.steps.runtime.signals import GRACE_SECONDS, Stop, Stopped, stop_on_signals

SIGNALS = [signal.SIGTERM, signal.SIGINT]


class Before:
    """Handlers of the test's own, which count the signals that reach them."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, number: int, _frame: object) -> None:
        self.seen.append(number)


@pytest.fixture
def before() -> Iterator[Before]:
    handler = Before()
    earlier = {number: signal.signal(number, handler) for number in SIGNALS}
    yield handler
    for number, each in earlier.items():
        signal.signal(number, each)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_to_stop_and_nothing_else_happens(
    number: signal.Signals, before: Before
) -> None:
    with stop_on_signals() as stop:
        before_it = stop.requested_at
        os.kill(os.getpid(), number)
        assert (before_it, stop.requested_at is not None) == (None, True)
    assert before.seen == []


def test_where_nothing_is_worth_finishing_the_signal_itself_stops(before: Before) -> None:
    with pytest.raises(Stopped), stop_on_signals(at_once=True):
        os.kill(os.getpid(), signal.SIGTERM)
    assert before.seen == []


def test_what_is_worth_finishing_is_finished(before: Before) -> None:
    with stop_on_signals(at_once=True) as stop, stop.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested_at is not None
    assert before.seen == []


def test_a_second_ctrl_c_acts_as_it_would_have(before: Before) -> None:
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert before.seen == [signal.SIGINT]


def test_a_second_sigterm_changes_nothing(before: Before) -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        asked_at = stop.requested_at
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested_at == asked_at
    assert before.seen == []


def test_a_second_sigterm_after_the_block_does_not_spoil_the_exit_code(before: Before) -> None:
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert before.seen == []


@pytest.mark.parametrize("sent", [0, 1])
def test_handlers_are_those_of_before_when_the_block_ends(sent: int, before: Before) -> None:
    def fails() -> None:
        with stop_on_signals():
            for _ in range(sent):
                os.kill(os.getpid(), signal.SIGINT)
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert [signal.getsignal(number) for number in SIGNALS] == [before, before]


def test_who_was_not_asked_goes_on_whatever_it_takes() -> None:
    stop = Stop()
    stop.raise_if_due(math.inf)
    assert stop.requested_at is None


def test_who_was_asked_goes_on_while_the_time_suffices() -> None:
    stop = Stop()
    stop.request()
    stop.raise_if_due(GRACE_SECONDS - 5)
    with pytest.raises(Stopped):
        stop.raise_if_due(GRACE_SECONDS + 1)


def test_who_was_asked_stops_when_the_time_is_over() -> None:
    stop = Stop(requested_at=time.monotonic() - GRACE_SECONDS - 1)
    with pytest.raises(Stopped):
        stop.raise_if_due()


def test_asking_again_gives_no_more_time() -> None:
    stop = Stop(requested_at=time.monotonic() - GRACE_SECONDS - 1)
    stop.request()
    with pytest.raises(Stopped):
        stop.raise_if_due()
