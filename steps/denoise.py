"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import diffusers
import numpy as np
import torch

from imagekiln.steps.compiled_code import CompiledCode
from imagekiln.steps.compiling import Compiling
from imagekiln.steps.conditioning import Conditioning, Inputs
from imagekiln.steps.decoding import Decoding
from imagekiln.steps.device import side_stream
from imagekiln.steps.drawing import Drawing, Event, Shot, shoot, wait
from imagekiln.steps.encode import Picture
from imagekiln.steps.lookahead import LookAhead
from imagekiln.steps.meter import Meter, Watched
from imagekiln.steps.pipeline import scheduler
from imagekiln.steps.rows import ImageRow, shape
from imagekiln.steps.speed import Speed
from imagekiln.steps.timing import Taken

GUIDERS = ("guider", "ocr_guider")  # HunyuanImage's


RGB = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class _Called:
    """A call of the pipeline: its pixels, which images its safety checker refused, and what was seen of it."""

    shot: Shot
    filtered: Sequence[bool]
    watched: Watched

    def pixels(self) -> Iterator[tuple[RGB, bool, bool]]:
        """Each image's pixels, whether its numbers were finite, and whether it was refused."""
        return zip(self.shot.rgb.numpy(), self.shot.finite.tolist(), self.filtered, strict=True)


class Denoiser:
    """A loaded pipeline that draws batches. Not for use from two threads at once."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, speed: Speed | None = None, code: CompiledCode | None = None
    ) -> None:
        """Take a pipeline on its device, in eval mode, and compiled code that others kept. Raises BadInput."""
        self.device: torch.device = pipe.device
        self._pipe = pipe
        self._conditioning = Conditioning(pipe)
        self._schedulers = {"default": pipe.scheduler}
        self.compiling = Compiling(pipe, speed or Speed(), code)
        self.decoding = Decoding(pipe, (speed or Speed()).vae)
        self._meter = Meter(pipe, texts=not self._conditioning.embeds, clock=self.compiling.clock)
        self.dtype = self._meter.dtype
        self._ahead = LookAhead(self.device, self._meter.text)
        self._coming: Sequence[ImageRow] = ()
        self._copies = side_stream(self.device)
        self._before: Event | None = None

    def draw(self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]) -> Sequence[Picture]:
        """Draw rows of one shape in a batch padded to `size`, or one by one in families where neighbours would tell.

        One picture a row, `blank` where it is not finite. `check` is called after each step and may raise to give up.
        On CUDA the device may still be at them: this returns once the batch before is done, so that the device always
        has one to go on with, and never more. Raises what the pipeline raises, ValueError where it drew another size
        than asked, and TryAgain where the device failed at the batch before.
        """
        calls = [
            self.compiling.draw(batch, partial(self._call, batch, check))
            for batch in self._conditioning.calls(rows, size)
        ]
        self._meter.count()
        if (over := calls[-1].shot.over) is None:
            return self._pictures(rows, calls)
        before, self._before = self._before, over
        if before is not None:
            wait(before)
        return Drawing(len(rows), over, partial(self._pictures, rows, calls))

    def expect(self, rows: Sequence[ImageRow]) -> None:
        """Be told what will be drawn after the next batch: its texts are encoded beside that one, where that helps."""
        self._coming = rows

    def taken(self) -> Taken:
        """What the batches took that were looked at since this was last asked."""
        self._ahead.settle()
        return self._meter.taken()

    def _call(self, batch: Sequence[ImageRow], check: Callable[[], None]) -> _Called:
        self._ahead.settle()
        told = self._conditioning
        self._prepare(batch[0])
        with self._meter.watching() as watched:
            with watched.spans.span("text"):
                text = told.text(batch)
            self._look_ahead(batch[0])
            inputs = text | told.noise(batch) | told.settings(batch[0]) | self._asking(check)
            output = self._pipe(**inputs, output_type=told.drawn_as)
        images = _sized(_tensor(output.images), batch[0])
        filtered = getattr(output, "nsfw_content_detected", None) or [False] * len(batch)
        return _Called(shoot(images, self._copies, watched.spans), filtered, watched)

    def _pictures(self, rows: Sequence[ImageRow], calls: Sequence[_Called]) -> list[Picture]:
        """The pictures of calls that are over. What filled up their batch comes last, and is left out."""
        for each in calls:
            self._meter.add(each.watched, len(rows) / sum(len(call.filtered) for call in calls))
        drawn = [pixels for each in calls for pixels in each.pixels()]
        return [_picture(row, *pixels) for row, pixels in zip(rows, drawn, strict=False)]

    def _look_ahead(self, row: ImageRow) -> None:
        """Encode the texts of rows to come, those of the same shape: another may change the pipeline itself."""
        coming, self._coming = self._coming, ()
        self._ahead.start(self._conditioning.unknown([each for each in coming if shape(each) == shape(row)]))

    def _asking(self, check: Callable[[], None]) -> Inputs:
        if self._conditioning.accepts("callback_on_step_end"):
            return {"callback_on_step_end": partial(_after_step, check)}
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


def _after_step(check: Callable[[], None], _pipe: object, _step: int, _time: object, tensors: Inputs) -> Inputs:
    check()
    return tensors


def _picture(row: ImageRow, rgb: RGB, good: bool, bad: bool) -> Picture:
    if not good:
        return Picture(row.place, None, "blank", "the model gave numbers that are not finite")
    if bad:
        return Picture(row.place, None, "filtered", "the model's safety checker refused it")
    return Picture(row.place, rgb)
