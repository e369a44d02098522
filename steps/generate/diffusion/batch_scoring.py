"""Scoring of images in batches that fit in memory: a batch too large is halved."""

from collections.abc import Sequence

import numpy as np

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.generate.diffusion.device import (
    explain_machine,
    explain_no_room,
    free_memory,
    is_out_of_memory,
)
from imagekiln.steps.generate.diffusion.scorers import Scorer
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.runs.image import ImageRow, ScoreValue
from imagekiln.steps.runtime.metrics import OOM_HALVINGS
from imagekiln.steps.storage.failures import error_reason

MAX_REASON_CHARS = 500


class BatchScorer:
    """One score, computed in batches that fit in memory. Always gives a value for each image."""

    def __init__(self, setting: str, score: Scorer, size: int) -> None:
        """Take what computes a batch of at most `size`, which only ever shrinks."""
        self._setting = setting
        self._score = score
        self._size = size
        self._any_scored = False

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """The score of each RGB uint8 (height, width, 3).

        Raises BadInput where the scorer gives anything but one number for each image, or fails at
        the first images that it gets, TryAgain where the device failed or has no room.
        """
        values: list[ScoreValue] = []
        while len(values) < len(images):
            start = len(values)
            end = start + self._size
            values += self._score_batch(images[start:end], rows[start:end])
        return values

    def _score_batch(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """The scores of the batch or, where memory ran out, of the first images of it."""
        try:
            result = self._score(images, rows, self._size)
        except KilnError:
            raise
        except Exception as error:  # a user's code and models may raise anything
            if explained := explain_machine(error):
                raise explained from error
            failure = error
        else:
            values = [to_score_value(number) for number in self._to_numbers(result, len(images))]
            self._any_scored = True
            return values
        if is_out_of_memory(failure):
            return self._halve(failure)
        return self._score_one_by_one(images, rows, failure)

    def _halve(self, failure: Exception) -> list[ScoreValue]:
        """Nothing yet: the same images come again, in smaller batches."""
        if self._size == 1:
            raise explain_no_room(
                f"{self._setting}: not even one image fits in the device's memory beside the model",
                error_reason(failure),
            ) from failure
        self._size //= 2
        OOM_HALVINGS.add()
        failure.__traceback__ = None  # it holds the tensors of the batch
        free_memory()
        return []

    def _score_one_by_one(
        self, images: Sequence[RGB], rows: Sequence[ImageRow], failure: Exception
    ) -> list[ScoreValue]:
        """Find the images that the scorer fails at."""
        reason = f"{type(failure).__name__}: {failure}"[:MAX_REASON_CHARS]
        reason = reason.encode(errors="replace").decode()  # Parquet takes no lone surrogates
        if len(images) > 1:
            values = []
            for image, row in zip(images, rows, strict=True):
                values += self([image], [row])
            return values
        if not self._any_scored:
            raise BadInput(
                f"{self._setting}: failed at the first image ({reason[:200]}). "
                "Correct it, and run again."
            ) from failure
        return [ScoreValue(None, f"the score failed: {reason}")]

    def _to_numbers(self, result: object, count: int) -> list[float]:
        try:
            numbers = np.asarray(result, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise self._wrong_result(f"a {type(result).__name__}", count) from error
        if numbers.shape != (count,):
            shape = " x ".join(map(str, numbers.shape)) or "one"
            raise self._wrong_result(f"{shape} numbers", count)
        return list(numbers.tolist())

    def _wrong_result(self, described: str, count: int) -> BadInput:
        return BadInput(
            f"{self._setting}: returned {described} for {count} images. "
            "Return one number for each image."
        )


def to_score_value(number: float) -> ScoreValue:
    """The number as it is stored, or why there is none."""
    with np.errstate(over="ignore"):
        value = float(np.float32(number))
    if not np.isfinite(value):
        return ScoreValue(None, f"the score is {number:g}, no number")
    return ScoreValue(value)
