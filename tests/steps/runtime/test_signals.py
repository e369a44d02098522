"""Requests to stop."""

import math
import os
import signal
import time
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from imagekiln.steps.runtime import signals
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


def test_a_library_that_swallows_the_stop_does_not_hide_it(before: Recorder) -> None:
    schema = pa.schema({"number": pa.int64()})

    def interrupted() -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield pa.record_batch([[1]], schema)

    def read_within_duckdb() -> None:
        rows = pa.RecordBatchReader.from_batches(schema, interrupted())
        with duckdb.connect() as database:
            database.register("rows", rows)
            database.execute("SELECT sum(number) FROM rows").fetchall()

    with pytest.raises(Stopped), stop_on_signals(at_once=True):
        read_within_duckdb()
    with pytest.raises(ZeroDivisionError), stop_on_signals(at_once=True):
        _ = 1 // 0
    assert before.numbers == []


def test_a_deferred_block_is_finished(before: Recorder) -> None:
    with stop_on_signals(at_once=True) as stop, stop.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested_at is not None
    assert before.numbers == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_request_after_a_deferred_block_does_not_interrupt_what_follows_it(
    number: signal.Signals, before: Recorder
) -> None:
    recorded = []
    with stop_on_signals(at_once=True) as stop:
        with stop.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), number)
        recorded.append("statistics")
    assert recorded == ["statistics"]
    assert before.numbers == []


def test_a_second_request_after_the_grace_period_stops_what_follows_a_deferred_block(
    before: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(stop: Stop) -> None:
        with stop.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.0)
    with pytest.raises(Stopped), stop_on_signals(at_once=True) as stop:
        work(stop)
    assert before.numbers == []


def test_each_further_ctrl_c_stops_at_once_and_deferred_blocks_too(before: Recorder) -> None:
    with stop_on_signals() as stop, stop.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(2):
            with pytest.raises(Stopped):
                os.kill(os.getpid(), signal.SIGINT)
    assert before.numbers == []


def test_a_second_sigterm_changes_nothing(before: Recorder) -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        requested_at = stop.requested_at
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested_at == requested_at
    assert before.numbers == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_request_does_not_interrupt_what_the_first_has_cleaned_up(
    number: signal.Signals, before: Recorder
) -> None:
    cleaned_up = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            cleaned_up.append("temporary files")

    with pytest.raises(Stopped), stop_on_signals(at_once=True):
        work()
    assert cleaned_up == ["temporary files"]
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


def test_a_second_sigterm_after_two_blocks_does_not_spoil_the_exit_code_either(
    before: Recorder,
) -> None:
    with stop_on_signals(), stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert before.numbers == []


@pytest.mark.parametrize("sent", [0, 1])
def test_handlers_are_those_of_before_when_the_block_ends(sent: int, before: Recorder) -> None:
    def fails() -> None:
        with stop_on_signals():
            for _ in range(sent):
                os.kill(os.getpid(), signal.SIGINT)
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert {signal.getsignal(number) for number in SIGNALS} == {before}


def test_work_without_a_request_continues_however_long_it_takes() -> None:
    stop = Stop()
    stop.raise_if_due(math.inf)
    assert stop.requested_at is None


def test_work_continues_after_a_request_while_the_time_suffices() -> None:
    stop = Stop()
    stop.request()
    stop.raise_if_due(GRACE_SECONDS - 5)
    with pytest.raises(Stopped):
        stop.raise_if_due(GRACE_SECONDS + 1)


def test_work_stops_when_the_grace_period_is_over() -> None:
    stop = Stop(requested_at=time.monotonic() - GRACE_SECONDS - 1)
    with pytest.raises(Stopped):
        stop.raise_if_due()


def test_a_second_request_gives_no_more_time() -> None:
    stop = Stop(requested_at=time.monotonic() - GRACE_SECONDS - 1)
    stop.request()
    with pytest.raises(Stopped):
        stop.raise_if_due()
