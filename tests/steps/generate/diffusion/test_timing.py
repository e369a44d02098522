"""What a batch's time goes into."""

import time

import pytest
import torch

from imagekiln.steps.generate.diffusion.compile import CompileClock
from imagekiln.steps.generate.diffusion.profiling import DeviceTimes, Spans

CPU = torch.device("cpu")


def test_the_whole_less_text_and_decoding_is_denoising() -> None:
    spans = Spans(CPU)
    with spans.span("whole"):
        time.sleep(0.03)
        with spans.span("text"):
            time.sleep(0.01)
        for _ in range(2):
            with spans.span("decode"):
                time.sleep(0.02)
    with spans.span("copy"):
        time.sleep(0.01)
    taken = spans.times()
    assert 0.01 <= taken.text < 0.03
    assert 0.04 <= taken.decode < 0.07
    assert 0.01 <= taken.copy < 0.03
    assert taken.busy == pytest.approx(taken.text + taken.denoise + taken.decode)
    assert 0.03 <= taken.denoise < 0.06


def test_a_span_that_fails_counts_nothing() -> None:
    spans = Spans(CPU)
    with pytest.raises(LookupError), spans.span("whole"):
        raise LookupError
    assert spans.times() == DeviceTimes()


def test_what_batches_took_adds_up() -> None:
    one = DeviceTimes(1.0, 2.0, 3.0, 4.0, 5.0)
    assert one + one + DeviceTimes() == DeviceTimes(2.0, 4.0, 6.0, 8.0, 10.0)


def test_compiling_is_left_out_of_what_was_done_meanwhile() -> None:
    clock = CompileClock()
    spans = Spans(CPU, clock)
    with spans.span("whole"), spans.span("decode"):
        time.sleep(0.05)
        clock.seconds += 0.04
    taken = spans.times()
    assert 0.01 <= taken.decode <= taken.busy < 0.05


def test_moments_of_the_device_are_waited_for_before_the_time_between_them_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        """One of CUDA, which the device has not come to yet."""

        over = False

        def synchronize(self) -> None:
            self.over = True

        def elapsed_time(self, until: "Event") -> float:
            if not until.over:
                raise ValueError("Both events must be completed before calculating elapsed time.")
            return 2000.0

    monkeypatch.setattr(
        "imagekiln.steps.generate.diffusion.profiling.record_event",
        lambda *, timed: Event() if timed else None,
    )
    spans = Spans(torch.device("cuda"))
    with spans.span("whole"):
        pass
    assert spans.times().busy == 2.0
