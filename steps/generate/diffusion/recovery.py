"""Recovery from failures: a batch that is too large is halved, and a bad prompt fails alone."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from imagekiln.steps.errors import KilnError
from imagekiln.steps.generate.diffusion.device import (
    DeviceShared,
    explain_machine,
    explain_no_room,
    free_memory,
    is_out_of_memory,
)
from imagekiln.steps.models.performance import limit_batch_pixels
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runtime.metrics import OOM_HALVINGS
from imagekiln.steps.runtime.signals import Stopped

MAX_ERROR_CHARS = 500
# Generates rows of one shape in a batch of a size, or raises. Reading one of the images may wait,
# and raises TryAgain if the device has failed.
DrawBatch = Callable[[Sequence[ImageRow], int], Sequence[DrawnImage]]


@dataclass(frozen=True, slots=True)
class _DrawFailure:
    """The message of an error, since the error itself would keep its batch's tensors alive."""

    message: str
    out_of_memory: bool


class BatchRecovery:
    """Generates every row, if need be in smaller batches, or as a failed image.

    `max_pixels` is the number of pixels that fit in memory at once; None until memory has run out.
    Unless `all_must_fit`, an image that does not fit fails alone if it has more than
    `usual_pixels`, the job's own size, or if another image succeeded before.
    """

    def __init__(
        self,
        draw: DrawBatch,
        planned_size: Callable[[ImageRow], int],
        setting: str = "",
        usual_pixels: float = math.inf,
        *,
        all_must_fit: bool = False,
    ) -> None:
        """Take the functions that generate a batch and return its planned size.

        Errors name `setting`, the setting of a pass or score.
        """
        self.max_pixels: int | None = None
        self._setting = setting
        self._draw = draw
        self._planned_size = planned_size
        self._any_drawn = False
        self._usual_pixels = usual_pixels
        self._all_must_fit = all_must_fit

    def batch_size(self, row: ImageRow) -> int:
        """Return the batch size for rows of this shape, limited by the memory known to fit."""
        return limit_batch_pixels(self._planned_size(row), _pixels(row), self.max_pixels)

    def draw_batches(self, rows: Sequence[ImageRow]) -> Iterator[Sequence[DrawnImage]]:
        """Generate rows of one shape, batch after batch."""
        while rows:
            images = self.draw_prefix(rows)
            rows = rows[len(images) :]
            yield images

    def draw_prefix(self, rows: Sequence[ImageRow]) -> Sequence[DrawnImage]:
        """Generate the first of these rows, as many as one batch holds.

        Raises TryAgain if the device failed or is shared, BadInput if an image will never fit.
        """
        batch = rows[: self.batch_size(rows[0])]
        drawn = self._try_draw(batch)
        if not isinstance(drawn, _DrawFailure):
            self._any_drawn = True
            return drawn
        if drawn.out_of_memory:
            return self._draw_smaller(batch, drawn)
        return self._draw_one_by_one(batch, drawn)

    def _draw_smaller(
        self, rows: Sequence[ImageRow], failure: _DrawFailure
    ) -> Sequence[DrawnImage]:
        """Halve the batch, and all later batches with as many pixels."""
        size = self.batch_size(rows[0])
        if size > 1:
            self.max_pixels = size // 2 * _pixels(rows[0])
            OOM_HALVINGS.add()
            free_memory()
            return self.draw_prefix(rows)

        subject = f"{self._setting}: " if self._setting else ""
        parameters = rows[0].parameters
        explained = explain_no_room(
            f"{subject}not even one image fits in the device's memory, of "
            f"{parameters.width} x {parameters.height} pixels",
            failure.message,
            "Ask for smaller images, or choose a larger GPU.",
        )
        others_fit = self._any_drawn or _pixels(rows[0]) > self._usual_pixels
        if isinstance(explained, DeviceShared) or self._all_must_fit or not others_fit:
            raise explained
        return self._draw_one_by_one(rows, failure)

    def _draw_one_by_one(
        self, rows: Sequence[ImageRow], failure: _DrawFailure
    ) -> Sequence[DrawnImage]:
        """Generate rows singly, to find the one that fails. The bytes are the same."""
        if len(rows) == 1:
            return [DrawnImage(rows[0].index_in_part, None, "failed", failure.message)]
        return [image for row in rows for image in self.draw_prefix([row])]

    def _try_draw(self, rows: Sequence[ImageRow]) -> Sequence[DrawnImage] | _DrawFailure:
        try:
            return self._draw(rows, self.batch_size(rows[0]))
        except (KilnError, Stopped):
            raise
        except Exception as error:  # a user's model and prompts may raise anything
            if failure := explain_machine(error):
                raise failure from error
            message = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
            if self._setting:  # at the end, since a message begins with the error's class
                message += f" (in {self._setting})"
            # Parquet refuses lone surrogates, which file names may contain.
            message = message.encode(errors="replace").decode()
            return _DrawFailure(message, is_out_of_memory(error))


def _pixels(row: ImageRow) -> int:
    return row.parameters.width * row.parameters.height
