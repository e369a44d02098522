"""Drawing that survives: a batch too large is halved, and a prompt that fails fails alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.generate.diffusion.device import (
    device_error,
    free_memory,
    is_device_lost,
    is_out_of_memory,
)
from imagekiln.steps.models.performance import limit_batch_pixels
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runtime.signals import Stopped

MAX_ERROR_CHARS = 500


class DrawBatch(Protocol):
    """Draws rows of one shape in a batch of `size`, or raises."""

    def __call__(self, rows: Sequence[ImageRow], size: int) -> Sequence[DrawnImage]:
        """One picture a row. To look at them may wait, and raise TryAgain where the device failed meanwhile."""


@dataclass(frozen=True, slots=True)
class _DrawFailure:
    """What is kept of an error. The error itself would keep the batch's tensors while the next one is tried."""

    error: str
    out_of_memory: bool


class BatchRecovery:
    """Draws every row one way or another. `most` is how many pixels fit at once, None until memory ran out.

    It only ever shrinks, and what failed at one size leaves the batches of smaller images as they are.
    """

    def __init__(self, draw: DrawBatch, planned: Callable[[ImageRow], int]) -> None:
        """Take what draws a batch, and how many images one has that holds rows of this one's size."""
        self.max_pixels: int | None = None
        self._draw = draw
        self._planned = planned
        self._fitted = False

    def draw_batches(self, rows: Sequence[ImageRow]) -> Iterator[Sequence[DrawnImage]]:
        """Pictures of rows of one shape, batch after batch."""
        left = list(rows)
        while left:
            pictures = self._draw_prefix(left[: self.batch_size(left[0])])
            left = left[len(pictures) :]
            yield pictures

    def batch_size(self, row: ImageRow) -> int:
        """The batch for rows of this one's shape."""
        return limit_batch_pixels(self._planned(row), _area(row), self.max_pixels)

    def _draw_prefix(self, rows: list[ImageRow]) -> Sequence[DrawnImage]:
        """Pictures of the first rows: of all, unless the batch had to become smaller."""
        drawn = self._try_draw(rows)
        if not isinstance(drawn, _DrawFailure):
            self._fitted = True
            return drawn
        if drawn.out_of_memory and (batch := self.batch_size(rows[0])) > 1:
            self.max_pixels = batch // 2 * _area(rows[0])
            free_memory()
            return self._draw_prefix(rows[: batch // 2])
        if (
            drawn.out_of_memory and not self._fitted
        ):  # it is the device that is too full, not the image that is too large
            raise TryAgain(
                f"not even one image fits in the device's memory ({drawn.error[:200]}). Run the shard again."
            )
        if len(rows) == 1:
            return [DrawnImage(rows[0].index_in_part, None, "failed", drawn.error)]
        # Alone in a batch of the same shape, a row gives the same bytes as beside its neighbours.
        return [picture for row in rows for picture in self._draw_prefix([row])]

    def _try_draw(self, rows: list[ImageRow]) -> Sequence[DrawnImage] | _DrawFailure:
        try:
            return self._draw(rows, self.batch_size(rows[0]))
        except (KilnError, Stopped):
            raise
        except Exception as error:  # a stranger's model and prompts may raise anything
            if is_device_lost(error):
                raise device_error(error) from error
            said = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
            # Parquet takes no lone surrogates, which names of files may hold.
            return _DrawFailure(said.encode(errors="replace").decode(), is_out_of_memory(error))


def _area(row: ImageRow) -> int:
    return row.parameters.width * row.parameters.height
