"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import diffusers
import numpy as np
import torch

from imagekiln.steps.branches import Branches
from imagekiln.steps.conditioning import Conditioning
from imagekiln.steps.conditioning import Inputs as Arguments
from imagekiln.steps.conditions import Conditions
from imagekiln.steps.encode import Picture
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.pipeline import scheduler
from imagekiln.steps.rows import ImageRow, shape

GUIDERS = ("guider", "ocr_guider")  # HunyuanImage's


class Denoiser:
    """A loaded pipeline that draws batches. Not for use from two threads at once."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        loras: LoraLayers | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        """Take a pipeline on its device, in eval mode, its LoRAs, and what images are drawn from beside texts."""
        self.device: torch.device = pipe.device
        self._pipe = pipe
        self._loras = loras
        self._conditions = conditions
        self._branches = Branches(pipe, loras, conditions)
        self._schedulers = {"default": pipe.scheduler}

    def draw(self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]) -> list[Picture]:
        """Draw rows of one shape in a batch padded to `size`, or one by one in families where neighbours would tell.

        One picture a row, `blank` where it is not finite. `check` is called after each step and may raise to give up.
        Raises what the pipeline raises, and ValueError where it drew another size than asked.
        """
        _, told = self._branches.plain
        drawn = [picture for batch in told.calls(rows, size) for picture in self._call(batch, check)]
        return drawn[: len(rows)]

    def load_loras(self, names: Iterable[str]) -> None:
        """Load these LoRAs now, rather than when a batch first asks for them. Raises BadInput, Missing, TryAgain."""
        if self._loras is not None:
            self._loras.load(names)

    def _call(self, batch: Sequence[ImageRow], check: Callable[[], None]) -> list[Picture]:
        pipe, told = self._branches.of(shape(batch[0]).pictures)
        self._prepare(pipe, batch[0])
        inputs = told.text(batch) | told.noise(batch) | told.settings(batch[0]) | _asking(told, check)
        output = pipe(**inputs | self._branches.pictured(batch), output_type=told.drawn_as)
        images = _sized(_tensor(output.images), batch[0])
        finite = images.isfinite().flatten(1).all(1).tolist()
        filtered = getattr(output, "nsfw_content_detected", None) or [False] * len(batch)
        pixels = to_uint8(images)
        return [
            _picture(row, rgb, good, bad)
            for row, rgb, good, bad in zip(batch, pixels, finite, filtered, strict=True)
        ]  # fmt: skip

    def expect(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows will be drawn, so that their pictures can be read ahead."""
        if self._conditions is not None:
            self._conditions.inputs.expect(rows)

    def _prepare(self, pipe: diffusers.DiffusionPipeline, row: ImageRow) -> None:
        """Give the pipeline what it keeps as a part of itself: the batch's scheduler and the strength of guiders."""
        wanted = shape(row)
        self._branches.plain[1].adapt(row)
        if wanted.sampler not in self._schedulers:
            self._schedulers[wanted.sampler] = scheduler(self._pipe, wanted.sampler)
        pipe.scheduler = self._schedulers[wanted.sampler]
        for name in GUIDERS:
            if guider := getattr(pipe, name, None):
                guider.guidance_scale = wanted.guidance


def _asking(told: Conditioning, check: Callable[[], None]) -> Arguments:
    if told.accepts("callback_on_step_end"):
        return {"callback_on_step_end": partial(_after_step, check)}
    if told.accepts("callback"):  # PixArt's
        return {"callback": lambda _step, _time, _latents: check()}
    return {}


def _tensor(images: "torch.Tensor | np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> torch.Tensor:
    """Images as float32 (batch, 3, height, width), from tensors or from arrays with the channels last."""
    return images.float() if isinstance(images, torch.Tensor) else torch.from_numpy(images).float().permute(0, 3, 1, 2)


def _sized(images: torch.Tensor, row: ImageRow) -> torch.Tensor:
    height, width = images.shape[-2:]
    if (height, width) != (row.pixels.height, row.pixels.width):
        raise ValueError(f"the model drew {width} x {height} pixels, which is the nearest size that it knows")
    return images


def _after_step(check: Callable[[], None], _pipe: object, _step: int, _time: object, tensors: Arguments) -> Arguments:
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
