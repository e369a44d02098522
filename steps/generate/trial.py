"""The search for a batch size: doubled until throughput saturates, each timed by a few steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.device import (
    device_advice,
    explain_machine,
    free_memory,
    is_out_of_memory,
    peak_bytes,
    reset_peak,
    synchronized_time,
)
from imagekiln.steps.generate.diffusion.profiling import Moment, current_moment, elapsed_seconds
from imagekiln.steps.job.tuning_file import MAX_BATCH_IMAGES, MAX_MEMORY_SHARE, StopReason
from imagekiln.steps.runs.image import ImageParameters, ImageRow
from imagekiln.steps.storage.failures import error_reason

MAX_DRAWS = 20
TUNE_AGAIN = "Tune again."
# Below this gain in images a second, a larger batch is not worth its memory and its longer parts.
MIN_GAIN = 0.03
# Doublings in a row that gain too little: one alone may be noise, or a step in a kernel's tiling.
PATIENCE = 2


@dataclass(frozen=True, slots=True)
class BatchMeasurement:
    """The seconds that a batch took, and its peak memory, if the device reports it."""

    batch_size: int
    seconds: float
    peak_bytes: int | None = None

    @property
    def images_per_second(self) -> float:
        """Throughput at this batch size."""
        return self.batch_size / self.seconds


@dataclass(frozen=True, slots=True)
class BatchSearchResult:
    """The batch size to use, all that were measured, and why the search stopped."""

    best: BatchMeasurement
    measurements: tuple[BatchMeasurement, ...]
    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class TrialBudget:
    """How much is drawn for each batch size: `steps` at a time, for `seconds` after a warm-up.

    An image of fewer steps is drawn whole. `minutes` is for all batches of one image size: after
    that, what has been measured decides.
    """

    steps: int = 6
    seconds: float = 2.0
    minutes: float = 15.0


def device_moment(device: torch.device) -> Moment:
    """The moment when the work queued so far is done. CUDA's events note it without a wait."""
    return current_moment(device) if device.type == "cuda" else synchronized_time(device)


class Trial:
    """Tries batches of images of one shape."""

    def __init__(
        self,
        denoiser: Denoiser,
        parameters: ImageParameters,
        budget: TrialBudget,
        clock: Callable[[torch.device], Moment] = device_moment,
    ) -> None:
        """Take the model and an image of the job, of whose steps only a few are drawn.

        On CUDA the clock is the device's own, and reading it holds up nothing.
        """
        self._denoiser = denoiser
        self._parameters = parameters
        self._budget = budget
        self._steps = min(budget.steps, parameters.steps)
        self._clock = clock

    def measure(self, batch_size: int) -> BatchMeasurement | None:
        """The time of a batch with all its steps; None where it does not fit in memory.

        Raises BadInput where the model cannot draw it, TryAgain where the machine failed.
        """
        try:
            with device_advice(TUNE_AGAIN):
                return self._measure_batch(batch_size)
        except KilnError:
            raise
        except Exception as error:  # a user's model may raise anything
            if failure := explain_machine(error, TUNE_AGAIN):
                raise failure from error
            if not is_out_of_memory(error):
                raise BadInput(
                    f"the model does not draw ({error_reason(error)}). Correct the job's defaults."
                ) from error
        free_memory()  # after the error, whose traceback holds the batch's tensors
        return None

    def _measure_batch(self, batch_size: int) -> BatchMeasurement:
        rows = self._trial_rows(batch_size)
        reset_peak(self._denoiser.device)
        self._timed_draw(rows)  # warms up: compiles, chooses kernels, encodes the text

        seconds: list[float] = []
        started = self._now()
        while len(seconds) < MAX_DRAWS and self._seconds_since(started) < self._budget.seconds:
            times = self._timed_draw(rows)
            seconds.append(extrapolate(times, self._steps, self._parameters.steps))
        # A busy neighbor or a low clock can only slow a draw down: the fastest is the device's own.
        return BatchMeasurement(batch_size, min(seconds), peak_bytes(self._denoiser.device))

    def _timed_draw(self, rows: Sequence[ImageRow]) -> list[float]:
        """Draw; the seconds up to the beginning, the end of each step, and the last image."""
        moments = [self._now()]
        images = self._denoiser.draw(rows, len(rows), lambda: moments.append(self._now()))
        list(images)  # waits for images that the device is still drawing
        moments.append(self._now())
        return [elapsed_seconds(moments[0], moment) for moment in moments]

    def _now(self) -> Moment:
        return self._clock(self._denoiser.device)

    def _seconds_since(self, moment: Moment) -> float:
        return elapsed_seconds(moment, self._now())

    def _trial_rows(self, batch_size: int) -> list[ImageRow]:
        parameters = replace(self._parameters, steps=self._steps)
        return [
            ImageRow(index, f"{index:032x}", replace(parameters, seed=index))
            for index in range(batch_size)
        ]


def extrapolate(times: Sequence[float], steps: int, all_steps: int) -> float:
    """Seconds for a batch of `all_steps` steps, from the times of one of `steps`.

    `times` are those of the beginning, the end of each step, and the end. If the pipeline reports
    no steps, all of its time is taken to be spent on them.
    """
    total = times[-1] - times[0]
    step_ends = times[1:-1]
    if len(step_ends) < 2:
        return total * all_steps / steps

    # The first step may include a wait for earlier work, so it is left out of the mean. Some
    # samplers call the denoiser more than once a step.
    seconds_per_call = (step_ends[-1] - step_ends[0]) / (len(step_ends) - 1)
    seconds_per_step = seconds_per_call * len(step_ends) / steps
    other_seconds = max(0.0, total - steps * seconds_per_step)
    return other_seconds + all_steps * seconds_per_step


def search_batch_size(
    measure: Callable[[int], BatchMeasurement | None],
    memory: int | None,
    max_size: int = MAX_BATCH_IMAGES,
    out_of_time: Callable[[], bool] = lambda: False,
) -> BatchSearchResult | None:
    """Measure batches of 1, 2, 4... up to `max_size`, and choose. None where not one image fits.

    `measure` returns None for a batch that does not fit. `memory` is the device's, in bytes. A
    batch that leaves less than a tenth of it free is never chosen, unless it is a single image.
    """
    measurements: list[BatchMeasurement] = []
    size = 1
    while size <= max_size:
        if measurements and out_of_time():
            return _choose_batch(measurements, "time")

        latest = measure(size)
        if latest is None or (measurements and not _fits_in_memory(latest, memory)):
            return _choose_batch(measurements, "memory") if measurements else None

        measurements.append(latest)
        if _is_saturated(measurements):
            return _choose_batch(measurements, "saturated")
        size *= 2
    return _choose_batch(measurements, "largest")


def _fits_in_memory(measurement: BatchMeasurement, memory: int | None) -> bool:
    if measurement.peak_bytes is None or memory is None:
        return True
    return measurement.peak_bytes <= MAX_MEMORY_SHARE * memory


def _is_saturated(measurements: Sequence[BatchMeasurement]) -> bool:
    if len(measurements) <= PATIENCE:
        return False
    best_before = max(measurement.images_per_second for measurement in measurements[:-PATIENCE])
    threshold = best_before * (1 + MIN_GAIN)
    return all(
        measurement.images_per_second < threshold for measurement in measurements[-PATIENCE:]
    )


def _choose_batch(
    measurements: Sequence[BatchMeasurement], stop_reason: StopReason
) -> BatchSearchResult:
    enough = max(measurement.images_per_second for measurement in measurements) * (1 - MIN_GAIN)
    best = next(
        measurement for measurement in measurements if measurement.images_per_second >= enough
    )
    return BatchSearchResult(best, tuple(measurements), stop_reason)
