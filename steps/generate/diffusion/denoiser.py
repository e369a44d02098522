"""One batch through the denoiser: image rows of one shape in, RGB pixels out."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import diffusers
import numpy as np
import torch
from diffusers.utils import BaseOutput

from imagekiln.steps.generate.diffusion.adapters import LoadedAdapters, load_adapters
from imagekiln.steps.generate.diffusion.compile import CompiledPipeline
from imagekiln.steps.generate.diffusion.compile_cache import CompileCache
from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.pipeline import load_pipeline, make_scheduler
from imagekiln.steps.generate.diffusion.profiling import DeviceTimes, PipelineProfiler, Spans
from imagekiln.steps.generate.diffusion.text_encoding import TextPrefetcher
from imagekiln.steps.generate.diffusion.transfer import (
    DeviceEvent,
    HostCopy,
    PendingBatch,
    copy_to_host,
    wait_for_event,
)
from imagekiln.steps.generate.diffusion.vae import VaeDecoder
from imagekiln.steps.generate.diffusion.variants import PipelineVariants
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.speed import SpeedSettings
from imagekiln.steps.runs.image import DrawnImage, ImageRow, batch_shape
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A call of the pipeline: its pixels, which images its safety checker refused, and what it took."""

    host_copy: HostCopy
    safety_flags: Sequence[bool]
    spans: Spans

    def iter_images(self) -> Iterator[tuple[RGB, bool, bool]]:
        """Each image's pixels, whether its numbers were finite, and whether it was refused."""
        return zip(
            self.host_copy.rgb.numpy(),
            self.host_copy.finite.tolist(),
            self.safety_flags,
            strict=True,
        )


def to_tensor(
    images: "torch.Tensor | np.ndarray[tuple[int, ...], np.dtype[np.float32]]", row: ImageRow
) -> torch.Tensor:
    """Images as float32 (batch, 3, height, width), from tensors or from arrays with the channels last.

    Raises ValueError where they are of another size than the row's.
    """
    found = images.float() if isinstance(images, torch.Tensor) else _channels_first(images)
    height, width = found.shape[-2:]
    if (height, width) != (row.parameters.height, row.parameters.width):
        raise ValueError(
            f"the model drew {width} x {height} pixels, which is the nearest size that it knows"
        )
    return found


def safety_flags(output: BaseOutput, count: int) -> list[bool]:
    """Which of this many images the pipeline's safety checker refused; none where it has none, or is silent."""
    found = (getattr(output, name, None) for name in ("nsfw_content_detected", "nsfw_detected"))
    return [bool(each) for each in next(filter(None, found), [False] * count)]


def _channels_first(images: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> torch.Tensor:
    return torch.from_numpy(images).float().permute(0, 3, 1, 2)


def to_drawn_image(row: ImageRow, rgb: RGB, good: bool, bad: bool) -> DrawnImage:
    """A row's picture: `good` numbers are finite, a `bad` image was refused."""
    if not good:
        return DrawnImage(
            row.index_in_part, None, "blank", "the model gave numbers that are not finite"
        )
    if bad:
        return DrawnImage(
            row.index_in_part, None, "filtered", "the model's safety checker refused it"
        )
    return DrawnImage(row.index_in_part, rgb)


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
        self.compiled_pipeline = CompiledPipeline(
            pipe, speed, code, [] if controlnet is None else [controlnet]
        )
        self.vae_decoder = VaeDecoder(pipe, speed.vae)
        self._meter = PipelineProfiler(
            pipe, texts=not self._conditioning.encodes_texts, clock=self.compiled_pipeline.clock
        )
        self._ahead = TextPrefetcher(self.device, self._meter.add_text)
        self._coming: Sequence[ImageRow] = ()
        self._copies = side_stream(self.device)
        self._before: DeviceEvent | None = None

    def draw(
        self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
    ) -> Sequence[DrawnImage]:
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
            inputs = (
                text
                | told.noise_kwargs(batch)
                | told.settings_kwargs(batch[0])
                | told.after_step(check)
            )
            output = branch.draw(inputs | self._branches.image_kwargs(batch))
        images = to_tensor(output.images, batch[0])
        return PipelineCall(
            copy_to_host(images, self._copies, spans), safety_flags(output, len(batch)), spans
        )

    def _to_drawn_images(
        self, rows: Sequence[ImageRow], calls: Sequence[PipelineCall]
    ) -> list[DrawnImage]:
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
            self._conditioning.uncached_texts(
                [each for each in coming if batch_shape(each) == batch_shape(row)]
            )
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


def load_denoiser(plan: Plan, store: Store | None = None, *, code: bool = True) -> Denoiser:
    """The denoiser of a plan; of the run or round in `store`, with its pictures and the networks that read them.

    With `code`, it takes and leaves the compiled code that lies beside the run. Raises BadInput where the model does
    not load, TryAgain where its device is not there.
    """
    pipe, speed = load_pipeline(plan), plan.job.speed
    loras = LoraLayers(pipe, plan.job.model.loras, plan.loras) if plan.loras else None
    if store is None:
        return Denoiser(pipe, speed, None, loras)
    run, _ = resolve_run(store.uri)
    kept = _open_compile_cache(plan, run, pipe) if code and speed.compile_cache != "off" else None
    return Denoiser(pipe, speed, kept, loras, load_adapters(pipe, plan, open_store(run)))


def _open_compile_cache(plan: Plan, run: str, pipe: diffusers.DiffusionPipeline) -> CompileCache:
    path = run if "://" in run else os.path.normpath(Path(run).absolute())
    output = path.rstrip("/").rpartition("/")[0]
    loras = [f"{name}={lora.sha256}" for name, lora in sorted(plan.loras.items())]
    files = "|".join([f"{plan.model.digest} {plan.adapters}", *loras])
    decides = f"{files} {plan.model.pipeline} {plan.job.model.dtype} {plan.job.speed}"
    return CompileCache(open_store(output or "/"), pipe.device, decides)
