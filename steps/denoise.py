"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

from collections.abc import Callable, Sequence
from functools import partial

import diffusers
import numpy as np
import torch

from imagekiln.steps.conditioning import Conditioning, Inputs
from imagekiln.steps.encode import Picture
from imagekiln.steps.pipeline import scheduler
from imagekiln.steps.rows import ImageRow, padded, shape


class Denoiser:
    """A loaded pipeline that draws batches. Not for use from two threads at once."""

    def __init__(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Take a pipeline on its device, in eval mode."""
        self.device: torch.device = pipe.device
        self._pipe = pipe
        self._conditioning = Conditioning(pipe)
        self._schedulers = {"default": pipe.scheduler}

    def draw(self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]) -> list[Picture]:
        """Draw rows of one shape in a batch padded to `size`; one picture a row, `blank` where it is not finite.

        `check` is called after each step and may raise to give up. Raises what the pipeline raises.
        """
        batch = padded(rows, size)
        inputs = self._conditioning.text(batch) | self._conditioning.noise(batch) | self._settings(batch[0])
        if self._conditioning.accepts("callback_on_step_end"):
            inputs["callback_on_step_end"] = partial(_after_step, check)
        output = self._pipe(**inputs, output_type="pt")
        images = output.images[: len(rows)].float()
        finite = images.isfinite().flatten(1).all(1).tolist()
        filtered = (getattr(output, "nsfw_content_detected", None) or [False] * len(rows))[: len(rows)]
        pixels = to_uint8(images)
        return [
            _picture(row, rgb, good, bad)
            for row, rgb, good, bad in zip(rows, pixels, finite, filtered, strict=True)
        ]  # fmt: skip

    def _settings(self, row: ImageRow) -> dict[str, object]:
        wanted = shape(row)
        if wanted.sampler not in self._schedulers:
            self._schedulers[wanted.sampler] = scheduler(self._pipe, wanted.sampler)
        self._pipe.scheduler = self._schedulers[wanted.sampler]
        return {
            "width": wanted.width,
            "height": wanted.height,
            "num_inference_steps": wanted.steps,
            "guidance_scale": wanted.guidance,
        }


def _after_step(check: Callable[[], None], _pipe: object, _step: int, _time: object, tensors: Inputs) -> Inputs:
    check()
    return tensors


def to_uint8(images: torch.Tensor) -> "np.ndarray[tuple[int, int, int, int], np.dtype[np.uint8]]":
    """Images in [0, 1], (batch, 3, height, width), as RGB uint8 (batch, height, width, 3) on the CPU."""
    scaled = images.nan_to_num().mul(255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def _picture(
    row: ImageRow, rgb: "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]", good: bool, bad: bool
) -> Picture:
    if not good:
        return Picture(row.place, None, "blank", "the model gave numbers that are not finite")
    if bad:
        return Picture(row.place, None, "filtered", "the model's safety checker refused it")
    return Picture(row.place, rgb)
