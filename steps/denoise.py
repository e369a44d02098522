"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import diffusers
import numpy as np
import torch
from diffusers.utils import BaseOutput

from imagekiln.steps.compiled_code import CompiledCode
from imagekiln.steps.compiling import Compiling
from imagekiln.steps.conditioning import Conditioning, Inputs
from imagekiln.steps.cutoff import CutOff, Tensors
from imagekiln.steps.decoding import Decoding
from imagekiln.steps.encode import Picture
from imagekiln.steps.families import family
from imagekiln.steps.foretelling import Foretelling
from imagekiln.steps.pipeline import scheduler
from imagekiln.steps.refine import Refiner
from imagekiln.steps.rows import ImageRow, shape
from imagekiln.steps.shortcuts import ALL_STEPS
from imagekiln.steps.speed import Speed

GUIDERS = ("guider", "ocr_guider")  # HunyuanImage's


class Denoiser:
    """A loaded pipeline that draws batches. Not for use from two threads at once."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: Speed | None = None,
        code: CompiledCode | None = None,
        refiner: Refiner | None = None,
    ) -> None:
        """Take a pipeline on its device, in eval mode; compiled code that others kept; what draws the last steps.

        Raises BadInput.
        """
        speed, known = speed or Speed(), family(type(pipe).__name__)
        self.device: torch.device = pipe.device
        self._pipe = pipe
        self._refiner = refiner
        self._conditioning = Conditioning(pipe)
        self._schedulers = {"default": pipe.scheduler}
        self.compiling = Compiling(pipe, speed, code)
        self.decoding = Decoding(refiner.pipe if refiner else pipe, speed.vae)
        self._cut = None if speed.guidance_until == ALL_STEPS else CutOff(speed.guidance_until, known.halved or ())
        self._foretold = None if speed.reuse == 1 else Foretelling(pipe, speed.reuse)

    def draw(self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]) -> list[Picture]:
        """Draw rows of one shape in a batch padded to `size`, or one by one in families where neighbours would tell.

        One picture a row, `blank` where it is not finite. `check` is called after each step and may raise to give up.
        Raises what the pipeline raises, and ValueError where it drew another size than asked.
        """
        drawn: list[Picture] = []
        for batch in self._conditioning.calls(rows, size):
            drawn += self.compiling.draw(batch, partial(self._call, batch, check))
        return drawn[: len(rows)]

    def _call(self, batch: Sequence[ImageRow], check: Callable[[], None]) -> list[Picture]:
        told = self._conditioning
        self._prepare(batch[0])
        inputs = told.text(batch) | told.noise(batch) | told.settings(batch[0]) | self._asking(check)
        output = self._drawn(batch, inputs)
        images = _sized(_tensor(output.images), batch[0])
        finite = images.isfinite().flatten(1).all(1).tolist()
        filtered = getattr(output, "nsfw_content_detected", None) or [False] * len(batch)
        pixels = to_uint8(images)
        return [
            _picture(row, rgb, good, bad)
            for row, rgb, good, bad in zip(batch, pixels, finite, filtered, strict=True)
        ]  # fmt: skip

    def _drawn(self, batch: Sequence[ImageRow], inputs: Inputs) -> BaseOutput:
        if self._refiner:
            return self._refiner.draw(self._pipe, batch, inputs)
        with self._foretold.batch() if self._foretold else nullcontext():
            return self._pipe(**inputs, output_type=self._conditioning.drawn_as)

    def _asking(self, check: Callable[[], None]) -> Inputs:
        if self._conditioning.accepts("callback_on_step_end"):
            return {"callback_on_step_end": partial(_after_step, check, self._cut)} | _tensors(self._cut)
        if self._conditioning.accepts("callback"):  # PixArt's
            return {"callback": lambda _step, _time, _latents: check()}
        return {}

    def _prepare(self, row: ImageRow) -> None:
        """Give the pipeline what it keeps as a part of itself: the batch's scheduler and the strength of guiders."""
        wanted = shape(row)
        if wanted.sampler not in self._schedulers:
            self._schedulers[wanted.sampler] = scheduler(self._pipe, wanted.sampler)
        self._pipe.scheduler = self._schedulers[wanted.sampler]
        for name in GUIDERS:
            if guider := getattr(self._pipe, name, None):
                guider.guidance_scale = wanted.guidance


def _tensor(images: "torch.Tensor | np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> torch.Tensor:
    """Images as float32 (batch, 3, height, width), from tensors or from arrays with the channels last."""
    return images.float() if isinstance(images, torch.Tensor) else torch.from_numpy(images).float().permute(0, 3, 1, 2)


def _sized(images: torch.Tensor, row: ImageRow) -> torch.Tensor:
    height, width = images.shape[-2:]
    if (height, width) != (row.pixels.height, row.pixels.width):
        raise ValueError(f"the model drew {width} x {height} pixels, which is the nearest size that it knows")
    return images


def _after_step(
    check: Callable[[], None],
    cut: CutOff | None,
    pipe: diffusers.DiffusionPipeline,
    step: int,
    _time: object,
    tensors: Tensors,
) -> Tensors:
    check()
    return cut.after_step(pipe, step, tensors) if cut else tensors


def _tensors(cut: CutOff | None) -> Inputs:
    """What a pipeline is to show after each step, where it is not what it always shows."""
    return {"callback_on_step_end_tensor_inputs": list(cut.halved)} if cut else {}


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
