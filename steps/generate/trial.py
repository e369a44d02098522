"""One batch size tried on a loaded model: what its images take, from a few steps and a whole decode."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.batch_search import BatchMeasurement
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.device import (
    free_memory,
    is_device_lost,
    is_out_of_memory,
    peak_bytes,
    reset_peak,
    synchronized_time,
)
from imagekiln.steps.runs.image import ImageParameters, ImageRow
from imagekiln.steps.storage.failures import error_reason

MAX_DRAWS = 20


@dataclass(frozen=True, slots=True)
class TrialBudget:
    """How much is drawn for each batch size: so many steps a time, for so many seconds after a first time to warm up.

    An image of fewer steps is drawn whole. `minutes` is for all batches of one size of images: when they are over, what
    was measured decides.
    """

    steps: int = 6
    seconds: float = 2.0
    minutes: float = 15.0


class Trial:
    """Tries batches of one shape."""

    def __init__(self, denoiser: Denoiser, pixels: ImageParameters, effort: TrialBudget) -> None:
        """Take the model, and an image as the job has them; of its steps only a few are drawn."""
        self._denoiser = denoiser
        self._pixels = pixels
        self._effort = effort
        self._steps = min(effort.steps, pixels.steps)

    def measure(self, batch: int) -> BatchMeasurement | None:
        """What a batch of so many images takes with all its steps; None where it does not fit in memory.

        Raises BadInput where the model does not draw, TryAgain where the device failed.
        """
        try:
            return self._measure_batch(batch)
        except KilnError:
            raise
        except Exception as error:  # a stranger's model may raise anything
            if is_device_lost(error):
                raise TryAgain(f"the device failed ({error_reason(error)}). Tune again.") from error
            if not is_out_of_memory(error):
                raise BadInput(
                    f"the model does not draw ({error_reason(error)}). Correct the job's defaults."
                ) from error
        free_memory()
        return None

    def _measure_batch(self, batch: int) -> BatchMeasurement:
        rows = self._trial_rows(batch)
        reset_peak(self._denoiser.device)
        self._draw_timestamps(
            rows
        )  # compiles, chooses kernels, and encodes the text, which is then known
        seconds: list[float] = []
        began = synchronized_time(self._denoiser.device)
        while (
            len(seconds) < MAX_DRAWS
            and synchronized_time(self._denoiser.device) - began < self._effort.seconds
        ):
            seconds.append(
                extrapolate(self._draw_timestamps(rows), self._steps, self._pixels.steps)
            )
        # What slows a draw down, a neighbour or a clock, never speeds one up: the fastest is the device's own.
        return BatchMeasurement(batch, min(seconds), peak_bytes(self._denoiser.device))

    def _draw_timestamps(self, rows: Sequence[ImageRow]) -> list[float]:
        """The moments at which drawing began, each step ended, and the pictures were there."""
        device, times = self._denoiser.device, list[float]()
        times.append(synchronized_time(device))
        # Looked at, so that what a device draws later is waited for.
        list(self._denoiser.draw(rows, len(rows), lambda: times.append(synchronized_time(device))))
        times.append(synchronized_time(device))
        return times

    def _trial_rows(self, batch: int) -> list[ImageRow]:
        few = replace(self._pixels, steps=self._steps)
        return [
            ImageRow(place, f"{place:032x}", replace(few, seed=place)) for place in range(batch)
        ]


def extrapolate(times: Sequence[float], few: int, steps: int) -> float:
    """Seconds for a batch of `steps` steps, from the moments of one of `few`: begun, each step ended, all done.

    A pipeline that tells of no steps is taken to do nothing else.
    """
    total, ended = times[-1] - times[0], times[1:-1]
    if len(ended) < 2:
        return total * steps / few
    # The first step may wait for what goes before it. Some samplers call the denoiser more than once a step.
    step = (ended[-1] - ended[0]) / (len(ended) - 1) * len(ended) / few
    return max(0.0, total - few * step) + steps * step
