"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import diffusers
import torch

from imagekiln.steps.branches import Branches
from imagekiln.steps.called import Called, picture, refused, sized
from imagekiln.steps.compiled_code import CompiledCode
from imagekiln.steps.compiling import Compiling
from imagekiln.steps.conditions import Conditions
from imagekiln.steps.decoding import Decoding
from imagekiln.steps.device import side_stream
from imagekiln.steps.drawing import Drawing, Event, shoot, wait
from imagekiln.steps.encode import Picture
from imagekiln.steps.lookahead import LookAhead
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.meter import Meter
from imagekiln.steps.pipeline import scheduler
from imagekiln.steps.rows import ImageRow, shape
from imagekiln.steps.speed import Speed
from imagekiln.steps.timing import Taken

GUIDERS = ("guider", "ocr_guider")  # HunyuanImage's


class Denoiser:
    """A loaded pipeline that draws batches. Not for use from two threads at once."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: Speed | None = None,
        code: CompiledCode | None = None,
        loras: LoraLayers | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        """Take a pipeline on its device, in eval mode, and what may come with it.

        `code` is compiled code that others kept, `conditions` what images are drawn from beside texts. Raises BadInput.
        """
        speed = speed or Speed()
        self.device: torch.device = pipe.device
        self._pipe = pipe
        self._loras, self._conditions = loras, conditions
        self._branches = Branches(pipe, loras, conditions)
        self._conditioning = self._branches.plain.told
        self._schedulers = {"default": pipe.scheduler}
        controlnet = None if conditions is None else conditions.controlnet
        self.compiling = Compiling(pipe, speed, code, [] if controlnet is None else [controlnet])
        self.decoding = Decoding(pipe, speed.vae)
        self._meter = Meter(pipe, texts=not self._conditioning.embeds, clock=self.compiling.clock)
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
        if (over := calls[-1].shot.over) is None:
            return self._pictures(rows, calls)
        before, self._before = self._before, over
        if before is not None:
            wait(before)
        return Drawing(len(rows), over, partial(self._pictures, rows, calls))

    def expect(self, rows: Sequence[ImageRow]) -> None:
        """Be told what will be drawn after the next batch: its texts are encoded beside that one, where that helps."""
        self._coming = rows

    def announce(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows will be drawn, about in this order, so that their pictures can be read ahead."""
        if self._conditions is not None:
            self._conditions.inputs.expect(rows)

    def load_loras(self, names: Iterable[str]) -> None:
        """Load these LoRAs now, rather than when a batch first asks for them. Raises BadInput, Missing, TryAgain."""
        if self._loras is not None:
            self._loras.load(names)

    def taken(self) -> Taken:
        """What the batches took that were looked at since this was last asked."""
        self._ahead.settle()
        return self._meter.taken()

    def _call(self, batch: Sequence[ImageRow], check: Callable[[], None]) -> Called:
        self._ahead.settle()
        branch = self._branches.of(shape(batch[0]).pictures)
        told = branch.told
        self._prepare(branch.pipe, batch[0])
        with self._meter.watching() as spans:
            with spans.span("text"):
                text = told.text(batch)
            self._look_ahead(batch[0])
            inputs = text | told.noise(batch) | told.settings(batch[0]) | told.after_step(check)
            output = branch.draw(inputs | self._branches.pictured(batch))
        images = sized(output.images, batch[0])
        return Called(shoot(images, self._copies, spans), refused(output, len(batch)), spans)

    def _pictures(self, rows: Sequence[ImageRow], calls: Sequence[Called]) -> list[Picture]:
        """The pictures of calls that are over. What filled up their batch comes last, and is left out."""
        for each in calls:
            self._meter.add(each.spans)
        drawn = [pixels for each in calls for pixels in each.pixels()]
        return [picture(row, *pixels) for row, pixels in zip(rows, drawn, strict=False)]

    def _look_ahead(self, row: ImageRow) -> None:
        """Encode the texts of rows to come, those of the same shape: another may change the pipeline itself."""
        coming, self._coming = self._coming, ()
        if self.compiling.first:
            return
        self._ahead.start(self._conditioning.unknown([each for each in coming if shape(each) == shape(row)]))

    def _prepare(self, pipe: diffusers.DiffusionPipeline, row: ImageRow) -> None:
        """Give the pipeline what it keeps as a part of itself: LoRAs, scheduler and the strength of guiders."""
        wanted = shape(row)
        self._conditioning.adapt(row)
        if wanted.sampler not in self._schedulers:
            self._schedulers[wanted.sampler] = scheduler(self._pipe, wanted.sampler)
        pipe.scheduler = self._schedulers[wanted.sampler]
        for name in GUIDERS:
            if guider := getattr(pipe, name, None):
                guider.guidance_scale = wanted.guidance
