"""The safety checker that a model brings. It runs where images are read, beside the batches."""

import time
from collections.abc import Callable, Sequence

import diffusers
import torch
from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.batch_scoring import BatchScorer
from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.generate.diffusion.transformers_models import pad_batch
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.runs.image import ImageRow, ScoreValue

ACCEPTED = ScoreValue(0.0)


class SafetyChecker:
    """Judges images as the pipeline itself would: by the same pixels, in batches of that size."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, on_checked: Callable[[float], None]
    ) -> None:
        """Take what the pipeline judges by; of one that has no checker, nothing is refused.

        `on_checked` is called with the seconds that a batch took.
        """
        self._checker = getattr(pipe, "safety_checker", None)
        self._extract_features = getattr(pipe, "feature_extractor", None)
        self._device: torch.device = pipe.device
        self._stream = side_stream(pipe.device)
        self._on_checked = on_checked
        self._scorers: dict[int, BatchScorer] = {}

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """1 for each image of a batch that is refused, else 0; None and why if it fails at one.

        Raises as scores do.
        """
        if self._checker is None:
            return [ACCEPTED] * len(images)
        started = time.perf_counter()
        size = len(images)
        if size not in self._scorers:
            self._scorers[size] = BatchScorer("the model's safety checker", self._judge, size)
        verdicts = self._scorers[size](images, rows)
        self._on_checked(time.perf_counter() - started)
        return verdicts

    def _judge(self, images: Sequence[RGB], _: Sequence[ImageRow], size: int) -> list[float]:
        pictures = [Pillow.fromarray(image) for image in images]
        features = self._extract_features(pictures, return_tensors="pt")["pixel_values"]
        features = pad_batch(features, size).to(self._checker.dtype)
        # It blackens what it refuses, in this list.
        padded = [*images] + [images[-1]] * (size - len(images))
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            _, refused = self._checker(images=padded, clip_input=features.to(self._device))
        return [float(flag) for flag in refused[: len(images)]]
