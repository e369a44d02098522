"""One batch size on a stand-in for a model, with a clock of its own."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.device import device_error
from imagekiln.steps.generate.trial import Trial, TrialBudget
from imagekiln.steps.runs.image import DrawnImage, ImageParameters, ImageRow
from imagekiln.steps.runtime.signals import Stopped

PARAMETERS = ImageParameters("a", "", 0, 64, 64, 30, 5.0, "default")


class Model:
    """Takes half a second and a quarter an image for a step, and a second for the rest.

    `slow` holds seconds that are added to draws, in turn.
    """

    device = torch.device("cpu")

    def __init__(self, slow: Sequence[float] = ()) -> None:
        self.clock = 0.0
        self.drawn: list[tuple[int, int, int]] = []
        self._slow = iter(slow)

    def draw(
        self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
    ) -> list[DrawnImage]:
        steps = rows[0].parameters.steps
        self.drawn.append((len(rows), size, steps))
        self.clock += next(self._slow, 0.0)
        for _ in range(steps):
            self.clock += 0.5 + 0.25 * len(rows)
            check()
        self.clock += 1.0
        return []


class Broken(Model):
    """Raises in place of drawing."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def draw(self, *_: object) -> list[DrawnImage]:
        raise self._error


def _trial(model: Model, parameters: ImageParameters = PARAMETERS, **budget: float) -> Trial:
    return Trial(
        cast("Denoiser", model),
        parameters,
        TrialBudget(steps=4, **budget),
        clock=lambda _: model.clock,
    )


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_what_all_steps_take_follows_from_a_few(batch: int) -> None:
    model = Model()
    found = _trial(model).measure(batch)
    assert found is not None
    assert found.seconds == pytest.approx(30 * (0.5 + 0.25 * batch) + 1)
    assert (found.batch_size, found.peak_bytes) == (batch, None)
    assert set(model.drawn) == {(batch, batch, 4)}


def test_the_first_draw_only_warms_up_and_the_fastest_counts() -> None:
    model = Model([100.0, 7.0, 0.0, 3.0])
    found = _trial(model, seconds=20.0).measure(2)
    assert found is not None
    assert found.seconds == pytest.approx(31)
    assert len(model.drawn) == 4


def test_a_batch_that_does_not_fit_is_none() -> None:
    full = Broken(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert _trial(full).measure(8) is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ValueError("no such size"),
            BadInput,
            "the model does not draw (no such size). Correct the job's defaults.",
        ),
        (
            torch.AcceleratorError("CUDA error: unspecified launch failure"),
            TryAgain,
            "the device failed (",
        ),
        (BadInput("as it is"), BadInput, "as it is"),
        (Stopped(), Stopped, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_failures_are_raised_in_a_sentence(
    error: BaseException, kind: type[BaseException], message: str
) -> None:
    with pytest.raises(kind) as caught:
        _trial(Broken(error)).measure(1)
    assert str(caught.value).startswith(message)


def test_device_whose_failure_the_denoiser_noticed_is_reported_with_what_to_type() -> None:
    """On CUDA, the failure of a batch shows where its images are read."""
    noticed = device_error(RuntimeError("CUDA error: unspecified launch failure"))
    with pytest.raises(TryAgain) as caught:
        _trial(Broken(noticed)).measure(1)
    assert str(caught.value) == (
        "the device failed (CUDA error: unspecified launch failure). Tune again."
    )


class Event:
    """A moment of a device that is a step behind: it is known once it has been waited for."""

    waits = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False

    def synchronize(self) -> None:
        Event.waits += 1
        self._over = True

    def elapsed_time(self, end: "Event") -> float:
        assert end._over
        return 1000 * (end._seconds - self._seconds)


def test_steps_are_timed_by_events_that_nobody_waits_for_during_a_draw() -> None:
    model = Model()
    waits_at_steps = list[int]()
    draw = model.draw

    def watch(rows: Sequence[ImageRow], size: int, check: Callable[[], None]) -> list[DrawnImage]:
        before = Event.waits
        images = draw(rows, size, check)
        waits_at_steps.append(Event.waits - before)
        return images

    model.draw = watch  # type: ignore[method-assign]
    trial = Trial(
        cast("Denoiser", model),
        PARAMETERS,
        TrialBudget(steps=4, seconds=20.0),
        clock=lambda _: cast("torch.cuda.Event", Event(model.clock)),
    )
    found = trial.measure(2)
    assert found is not None
    assert found.seconds == pytest.approx(30 * (0.5 + 0.25 * 2) + 1)
    assert set(waits_at_steps) == {0}
