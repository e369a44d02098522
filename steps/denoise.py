"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import diffusers
import torch

from imagekiln.steps.branches import PipelineVariants
from imagekiln.steps.called import PipelineCall, safety_flags, to_drawn_image, to_tensor
from imagekiln.steps.compiled_code import CompileCache
from imagekiln.steps.compiling import CompiledPipeline
from imagekiln.steps.conditions import LoadedAdapters
from imagekiln.steps.decoding import VaeDecoder
from imagekiln.steps.device import side_stream
from imagekiln.steps.drawing import DeviceEvent, PendingBatch, copy_to_host, wait_for_event
from imagekiln.steps.encode import DrawnImage
from imagekiln.steps.lookahead import TextPrefetcher
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.meter import PipelineProfiler
from imagekiln.steps.pipeline import make_scheduler
from imagekiln.steps.rows import ImageRow, batch_shape
from imagekiln.steps.speed import SpeedSettings
from imagekiln.steps.timing import DeviceTimes

GUIDER_NAMES = ("guider", "ocr_guider")  # HunyuanImage's


class Denoiser:
    """A loaded pipeline that draws batches. Not for use from two threads at once."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: SpeedSettings | None = None,
        code: CompileCache | None = None,
        loras: LoraLayers | None = None,
        conditions: LoadedAdapters | None = None,
    ) -> None:
        """Take a pipeline on its device, in eval mode, and what may come with it.

        `code` is compiled code that others kept, `conditions` what images are drawn from beside texts. Raises BadInput.
        """
        speed = speed or SpeedSettings()
        self.device: torch.device = pipe.device
        self._pipe = pipe
        self._loras, self._conditions = loras, conditions
        self._branches = PipelineVariants(pipe, loras, conditions)
        self._conditioning = self._branches.text_to_image.inputs
        self._schedulers = {"default": pipe.scheduler}
        controlnet = None if conditions is None else conditions.controlnet
        self.compiled_pipeline = CompiledPipeline(pipe, speed, code, [] if controlnet is None else [controlnet])
        self.vae_decoder = VaeDecoder(pipe, speed.vae)
        self._meter = PipelineProfiler(
            pipe, texts=not self._conditioning.encodes_texts, clock=self.compiled_pipeline.clock
        )
        self._ahead = TextPrefetcher(self.device, self._meter.add_text)
        self._coming: Sequence[ImageRow] = ()
        self._copies = side_stream(self.device)
        self._before: DeviceEvent | None = None

    def draw(self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]) -> Sequence[DrawnImage]:
        """Draw rows of one shape in a batch padded to `size`, or one by one in families where neighbours would tell.

        One picture a row, `blank` where it is not finite. `check` is called after each step and may raise to give up.
        On CUDA the device may still be at them: this returns once the batch before is done, so that the device always
        has one to go on with, and never more. Raises what the pipeline raises, ValueError where it drew another size
        than asked, and TryAgain where the device failed at the batch before.
        """
        calls = [
            self.compiled_pipeline.draw(batch, partial(self._call_pipeline, batch, check))
            for batch in self._conditioning.split_batches(rows, size)
        ]
        if (over := calls[-1].host_copy.done_event) is None:
            return self._to_drawn_images(rows, calls)
        before, self._before = self._before, over
        if before is not None:
            wait_for_event(before)
        return PendingBatch(len(rows), over, partial(self._to_drawn_images, rows, calls))

    def set_upcoming(self, rows: Sequence[ImageRow]) -> None:
        """Be told what will be drawn after the next batch: its texts are encoded beside that one, where that helps."""
        self._coming = rows

    def prefetch_images(self, rows: Iterable[ImageRow]) -> None:
        """Say which rows will be drawn, about in this order, so that their pictures can be read ahead."""
        if self._conditions is not None:
            self._conditions.image_prefetcher.set_upcoming(rows)

    def load_loras(self, names: Iterable[str]) -> None:
        """Load these LoRAs now, rather than when a batch first asks for them. Raises BadInput, Missing, TryAgain."""
        if self._loras is not None:
            self._loras.load(names)

    def pop_times(self) -> DeviceTimes:
        """What the batches took that were looked at since this was last asked."""
        self._ahead.wait()
        return self._meter.pop_times()

    def _call_pipeline(self, batch: Sequence[ImageRow], check: Callable[[], None]) -> PipelineCall:
        self._ahead.wait()
        branch = self._branches.variant_for(batch_shape(batch[0]).input_images)
        told = branch.inputs
        self._prepare_pipeline(branch.pipe, batch[0])
        with self._meter.profile_call() as spans:
            with spans.span("text"):
                text = told.text_kwargs(batch)
            self._encode_upcoming_texts(batch[0])
            inputs = text | told.noise_kwargs(batch) | told.settings_kwargs(batch[0]) | told.after_step(check)
            output = branch.draw(inputs | self._branches.image_kwargs(batch))
        images = to_tensor(output.images, batch[0])
        return PipelineCall(copy_to_host(images, self._copies, spans), safety_flags(output, len(batch)), spans)

    def _to_drawn_images(self, rows: Sequence[ImageRow], calls: Sequence[PipelineCall]) -> list[DrawnImage]:
        """The pictures of calls that are over. What filled up their batch comes last, and is left out."""
        for each in calls:
            self._meter.add_call(each.spans)
        drawn = [pixels for each in calls for pixels in each.iter_images()]
        return [to_drawn_image(row, *pixels) for row, pixels in zip(rows, drawn, strict=False)]

    def _encode_upcoming_texts(self, row: ImageRow) -> None:
        """Encode the texts of rows to come, those of the same shape: another may change the pipeline itself."""
        coming, self._coming = self._coming, ()
        if self.compiled_pipeline.compiling_now:
            return
        self._ahead.start(
            self._conditioning.uncached_texts([each for each in coming if batch_shape(each) == batch_shape(row)])
        )

    def _prepare_pipeline(self, pipe: diffusers.DiffusionPipeline, row: ImageRow) -> None:
        """Give the pipeline what it keeps as a part of itself: LoRAs, scheduler and the strength of guiders."""
        wanted = batch_shape(row)
        self._conditioning.activate_loras(row)
        if wanted.sampler not in self._schedulers:
            self._schedulers[wanted.sampler] = make_scheduler(self._pipe, wanted.sampler)
        pipe.scheduler = self._schedulers[wanted.sampler]
        for name in GUIDER_NAMES:
            if guider := getattr(pipe, name, None):
                guider.guidance_scale = wanted.guidance
