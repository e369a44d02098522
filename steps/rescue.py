"""Drawing that survives: a batch too large is halved, and a prompt that fails fails alone."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from imagekiln.steps import device
from imagekiln.steps.encode import Picture
from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.stop import Stopped

ERROR_CHARS = 500


class Draw(Protocol):
    """Draws rows of one shape in a batch of `size`, or raises."""

    def __call__(self, rows: Sequence[ImageRow], size: int) -> list[Picture]:
        """One picture a row."""


class Rescue:
    """Draws every row one way or another. `size` is the batch that fits: it only ever shrinks."""

    def __init__(self, draw: Draw, size: int) -> None:
        """Take what draws a batch, and how large one is."""
        self.size = size
        self._draw = draw

    def batches(self, rows: Sequence[ImageRow]) -> Iterator[list[Picture]]:
        """Pictures of rows of one shape, batch after batch."""
        left = list(rows)
        while left:
            pictures = self._batch(left[: self.size])
            left = left[len(pictures) :]
            yield pictures

    def _batch(self, rows: list[ImageRow]) -> list[Picture]:
        """Pictures of the first rows: of all, unless the batch had to become smaller."""
        try:
            return self._draw(rows, self.size)
        except (KilnError, Stopped):
            raise
        except Exception as error:  # noqa: BLE001  # a stranger's model and prompts may raise anything
            _refuse_lost(error)
            if device.is_out_of_memory(error) and self.size > 1:
                self.size //= 2
                device.free_memory()
                return self._batch(rows[: self.size])
            return [self._alone(row) for row in rows]

    def _alone(self, row: ImageRow) -> Picture:
        """One row's picture in a batch of the same shape, which gives the same bytes as beside its neighbours."""
        try:
            return self._draw([row], self.size)[0]
        except (KilnError, Stopped):
            raise
        except Exception as error:  # noqa: BLE001  # as above
            _refuse_lost(error)
            said = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
            return Picture(row.place, None, "failed", said)


def _refuse_lost(error: Exception) -> None:
    if device.is_lost(error):
        raise TryAgain(f"the device failed ({str(error)[:200]}). Run the shard again.") from error
