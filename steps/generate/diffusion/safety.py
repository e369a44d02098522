"""The safety checker that a model brings. It runs where images are read, beside the batches."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import diffusers
import torch

from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.generate.diffusion.scorers import BatchScorer, ModelScorer
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.runs.image import ImageRow, ScoreValue

ACCEPTED = ScoreValue(0.0)


class SafetyChecker:
    """Judges images as the pipeline itself would: by the same pixels, in batches of that size."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, on_checked: Callable[[float], None]
    ) -> None:
        """Take the checker from the pipeline, if it has one, so that its calls judge nothing.

        `on_checked` is called with the seconds that each batch took.
        """
        self._judge: ModelScorer | None = None
        self._scorers: dict[int, BatchScorer] = {}  # by the size of the batch
        self._on_checked = on_checked
        if checker := getattr(pipe, "safety_checker", None):
            stream = side_stream(pipe.device)
            compute = partial(_find_refused, checker)
            self._judge = ModelScorer(pipe.feature_extractor, compute, pipe.device, stream)
            pipe.register_modules(safety_checker=None)

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """1 for each image of a batch that is refused, else 0. Raises as scores do."""
        size = len(images)
        if self._judge is None:
            return [ACCEPTED] * size
        started = time.perf_counter()
        new = BatchScorer("the model's safety checker", self._judge, size)
        verdicts = self._scorers.setdefault(size, new)(images, rows)
        self._on_checked(time.perf_counter() - started)
        return verdicts


def _find_refused(checker: Untyped, pixels: torch.Tensor, _: Sequence[str]) -> torch.Tensor:
    blackened = torch.zeros(len(pixels))  # in place of images
    _, refused = checker(images=blackened, clip_input=pixels.to(checker.dtype))
    return torch.tensor(refused)
