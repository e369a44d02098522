"""One batch through a loaded pipeline: image rows of one shape in, RGB pixels out."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import diffusers
import torch
from diffusers.utils import BaseOutput
from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.adapters import LoadedAdapters, load_adapters
from imagekiln.steps.generate.diffusion.batch_trial import find_dependence, trial_row
from imagekiln.steps.generate.diffusion.compile import CompiledPipeline, CompileMode
from imagekiln.steps.generate.diffusion.device import (
    DeviceEvent,
    choose_device,
    finish_device_work,
    loading,
    side_stream,
    wait_for_event,
)
from imagekiln.steps.generate.diffusion.image_models import ACCEPTED, BoundScorer, SafetyChecker
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.patches import pinned_step_noise, step_on_host
from imagekiln.steps.generate.diffusion.pipeline import (
    decide_placement,
    denoiser_network,
    load_pipeline,
)
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineKwargs
from imagekiln.steps.generate.diffusion.placing import PlacedWeights
from imagekiln.steps.generate.diffusion.profiling import PipelineProfiler, Spans
from imagekiln.steps.generate.diffusion.step_shortcuts import step_shortcuts
from imagekiln.steps.generate.diffusion.text_encoding import TextPrefetcher
from imagekiln.steps.generate.diffusion.transfer import (
    HostCopy,
    PendingBatch,
    copy_to_host,
    to_tensor,
)
from imagekiln.steps.generate.diffusion.vae import DecodeMode, PlannedSize, VaeDecoder
from imagekiln.steps.generate.diffusion.variants import PipelineVariants, Variant
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.execution import Placement, SpeedSettings
from imagekiln.steps.models.facts import WeightsCheck
from imagekiln.steps.models.families import PLAIN_FAMILY, family_of, known_call_of
from imagekiln.steps.runs.image import (
    DrawnImage,
    ImageRow,
    PassedImages,
    ScoreValue,
    batch_shape,
    group_by_shape,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.storage.store import Store

GUIDER_NAMES = ("guider", "ocr_guider")  # HunyuanImage's


class RunPasses(Protocol):
    """Passes over generated images."""

    def __call__(
        self, images: Sequence[DrawnImage], rows: Sequence[ImageRow], check: Callable[[], None]
    ) -> PassedImages:
        """Run all passes over the images of these rows. `check` may raise to cancel."""

    def close(self) -> None:
        """Stop the threads of the passes' own models."""


class Denoiser:
    """A loaded pipeline that generates batches. Not thread-safe.

    Its scorers may run in another thread, its passes only in the same one. Until `close`, its
    threads prefetch prompt embeddings and input images.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: SpeedSettings | None = None,
        loras: LoraLayers | None = None,
        adapters: LoadedAdapters | None = None,
        *,
        planned_size: PlannedSize | None = None,
        placed: PlacedWeights | None = None,
        has_references: bool = False,
    ) -> None:
        """Take a pipeline in eval mode with its LoRAs and adapters. Its weights may be placed.

        Images are decoded as in a batch of `planned_size`, by default of the actual size. With
        `has_references`, rows have reference images that the pipeline reads.
        """
        speed = speed or SpeedSettings()
        placed = placed or PlacedWeights(pipe)
        if placed.placement == "offload":  # layers whose weights come and go are not compiled
            speed = speed.model_copy(update={"compile": "off"})
        self.placed = placed
        self.device = placed.device
        self._read_part: Callable[[], Sequence[ImageRow]] = list
        self.scorers: Mapping[str, BoundScorer] = {}
        self.passes: RunPasses | None = None
        self._speed = speed
        self._loras = loras
        self._adapters = adapters
        variants = PipelineVariants(placed, loras, adapters)
        self._variants = variants
        self._inputs = variants.text_to_image.inputs
        denoiser = denoiser_network(pipe)
        if getattr(denoiser, "is_loaded_in_8bit", False):
            self._inputs.one_at_a_time = "its weights of 8 bits compute a batch as a whole"
        is_plain = family_of(type(pipe).__name__) is PLAIN_FAMILY
        is_quantized = hasattr(denoiser, "hf_quantizer")  # its activations, too, in some
        self._needs_trial = (is_plain or is_quantized) and not self._inputs.one_at_a_time

        other_denoisers = []
        if adapters is not None and adapters.controlnet is not None:
            other_denoisers.append(adapters.controlnet)
        self.compiled_pipeline = CompiledPipeline(
            pipe, speed, other_denoisers, has_references=has_references
        )
        self.vae_decoder = VaeDecoder(pipe, speed.vae, planned_size, self._prepare_recompilation)
        self._profiler = PipelineProfiler(self.device, self.compiled_pipeline.clock)

        add_times = self._profiler.add
        self._text_prefetcher = TextPrefetcher(self.device, add_times)
        self._check_safety = SafetyChecker(pipe, add_times)
        self._upcoming: Sequence[ImageRow] = ()
        self._copy_stream = side_stream(self.device)
        self._previous_batch: DeviceEvent | None = None

    @property
    def placement(self) -> Placement:
        """Where the weights are kept."""
        return self.placed.placement

    @property
    def compile_mode(self) -> CompileMode:
        """The mode in which the denoiser is compiled now."""
        return self.compiled_pipeline.mode

    @property
    def decode_mode(self) -> DecodeMode:
        """The mode in which the VAE decodes now."""
        return self.vae_decoder.mode

    def draw(
        self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
    ) -> Sequence[DrawnImage]:
        """Generate rows of one shape in a batch padded to `size`, or singly for some families.

        Returns one image per row, `blank` if it is not finite. `check` is called after each step
        and may raise. On CUDA, this returns once the previous batch is done, so at most one more is
        queued. Raises TryAgain if the device failed in the previous batch.
        """
        return self.draw_over(rows, None, size, check)

    def draw_over(
        self,
        rows: Sequence[ImageRow],
        over: Mapping[int, Pillow.Image] | None,
        size: int,
        check: Callable[[], None],
    ) -> Sequence[DrawnImage]:
        """Generate rows from `over`, their images by index in the part. Otherwise as `draw`."""
        if self._needs_trial and size > 1 and not self._inputs.takes_one_row(rows[0]):
            self._inputs.one_at_a_time = self._find_dependence(rows[0])
            self._needs_trial = False
        self._encode_part_texts(rows)
        calls = []
        for batch in self._inputs.split_batches(rows, size):
            call = partial(self._call_pipeline, batch, check, over)
            calls.append(self.compiled_pipeline.draw(batch, call, self._code_tokens(batch)))
        done_event = calls[-1].host_copy.done_event
        read = partial(self._to_drawn_images, rows, calls, over is None)
        if done_event is None:
            return read()
        previous = self._previous_batch
        self._previous_batch = done_event
        if previous is not None:
            wait_for_event(previous)
        return PendingBatch(len(rows), done_event, read)

    @property
    def one_at_a_time(self) -> str | None:
        """Why batches are split into single images; None if they are not, or not yet."""
        return self._inputs.one_at_a_time

    def _code_tokens(self, batch: Sequence[ImageRow]) -> int | None:
        """Return the padded length of a batch's prompts, if compiled code depends on it."""
        if self.compiled_pipeline.mode == "none":
            return None
        self._text_prefetcher.wait()  # it uses the caches
        return self._inputs.text_tokens(batch)

    def set_upcoming(self, rows: Sequence[ImageRow]) -> None:
        """Set the rows after the next batch, whose inputs are prefetched while it runs."""
        self._upcoming = rows
        if self._adapters is None:
            return
        # Reference images have any size, and are needed one row after another.
        is_single = bool(rows) and self._inputs.takes_one_row(rows[0])
        self._adapters.images.prefetch(rows[:2] if is_single else rows)

    def set_part(self, read_rows: Callable[[], Sequence[ImageRow]]) -> None:
        """Set how to read the rows of the next part, if its prompts have a turn."""
        self._read_part = read_rows

    def _encode_part_texts(self, rows: Sequence[ImageRow]) -> None:
        """Encode the prompts of the whole part if these rows need one and encoders take turns."""
        if not self.placed.takes_turns or not self._inputs.uncached_texts(rows):
            return
        started = time.perf_counter()
        later = [row for row in self._read_part() if row.index_in_part >= rows[0].index_in_part]
        groups = [rows, *group_by_shape(later)]
        # Errors are raised by the batch that needs the failed prompt.
        with self.placed.encoders_on_device(), suppress(Exception):
            for group in reversed(groups):  # the cache keeps what came last
                for request in self._inputs.uncached_texts(group):
                    request.cache.get(request.text, request.loras)
        self._profiler.add(StageSeconds(text=time.perf_counter() - started))

    def finish_texts(self) -> None:
        """Wait for prefetched prompts, since nothing may run while another model compiles."""
        self._text_prefetcher.wait()

    def load_loras(self, names: Iterable[str]) -> None:
        """Load these LoRAs now, before a batch uses them."""
        if self._loras is not None:
            self._loras.load(names)

    def pop_times(self) -> StageSeconds:
        """Return the times of the batches that were read since the previous call."""
        self._text_prefetcher.wait()
        return self._profiler.pop_times()

    def close(self) -> None:
        """Stop the threads, including the passes'. Nothing can be generated afterwards."""
        self._text_prefetcher.close()
        if self.passes is not None:
            self.passes.close()
        if self._adapters is not None:
            self._adapters.images.close()
        finish_device_work(self.device)

    def _call_pipeline(
        self,
        batch: Sequence[ImageRow],
        check: Callable[[], None],
        over: Mapping[int, Pillow.Image] | None,
    ) -> "PipelineCall":
        self._text_prefetcher.wait()
        variant = self._variants.variant_for(batch_shape(batch[0]).input_images)
        self._prepare_pipeline(variant, batch[0])
        with self._profiler.profile_call(variant.pipe) as spans:
            with spans.span("text"):
                kwargs = variant.inputs.text_kwargs(batch)
            kwargs |= variant.inputs.batch_kwargs(batch, check)
            self._prefetch_texts(batch[0])
            kwargs |= self._variants.image_kwargs(batch, over)
            output = self._run(variant, kwargs, len(batch))
        tensor = to_tensor(output, batch[0])
        host_copy = copy_to_host(tensor, self._copy_stream, spans)
        return PipelineCall(batch, host_copy, spans)

    def _run(self, variant: Variant, kwargs: PipelineKwargs, images: int) -> BaseOutput:
        shortcuts = step_shortcuts(variant.pipe, self._speed, images)
        noise: AbstractContextManager[None] = nullcontext()
        if variant is self._variants.text_to_image:  # others draw noise between steps
            noise = pinned_step_noise(variant.pipe.scheduler)
        with shortcuts, noise:
            return variant.draw(kwargs)

    def _find_dependence(self, row: ImageRow) -> str | None:
        """Try rows of a pipeline that no table knows, in the shape of `row`."""
        variant = self._variants.text_to_image
        inputs = variant.inputs
        call = known_call_of(type(variant.pipe).__name__)
        row = trial_row(row, call)
        dtype = denoiser_network(variant.pipe).dtype

        def generate(rows: Sequence[ImageRow]) -> torch.Tensor:
            self._prepare_pipeline(variant, row)
            kwargs = inputs.text_kwargs(rows)
            kwargs |= inputs.batch_kwargs(rows, lambda: None)
            output = self._run(variant, kwargs, len(rows))
            return to_tensor(output, row)

        with self.compiled_pipeline.uncompiled():
            return find_dependence(row, dtype, generate)

    def _to_drawn_images(
        self, rows: Sequence[ImageRow], calls: Sequence["PipelineCall"], is_timed: bool
    ) -> list[DrawnImage]:
        """Convert finished calls to images. Drops the padding at the end of each batch."""
        images: list[DrawnImage] = []
        for call in calls:
            if is_timed:
                self._profiler.add_call(call.spans)
            pixels = list(call.host_copy.read_rgb())
            finite = call.host_copy.finite.tolist()
            verdicts = self._check_safety(pixels, call.rows)
            images += map(to_drawn_image, call.rows, pixels, finite, verdicts)
        return images[: len(rows)]

    def _prefetch_texts(self, row: ImageRow) -> None:
        """Prefetch prompts of upcoming rows of the same shape. Other shapes may change LoRAs."""
        upcoming = self._upcoming
        self._upcoming = ()
        if self.placed.placement != "resident" or self.compiled_pipeline.compiling_now:
            return
        same_shape = [other for other in upcoming if batch_shape(other) == batch_shape(row)]
        self._text_prefetcher.start(self._inputs.uncached_texts(same_shape))

    def _prepare_recompilation(self) -> None:
        """Prepare for compiling again after the decoder's mode changed: stop prefetching first."""
        self._text_prefetcher.wait()
        self.compiled_pipeline.expect_recompilation()

    def _prepare_pipeline(self, variant: Variant, row: ImageRow) -> None:
        """Set the pipeline's LoRAs, scheduler and guiders for a row."""
        self._inputs.activate_loras(row)
        scheduler = variant.schedulers.new(row.parameters.sampler)
        if variant is self._variants.text_to_image:  # other variants may begin at a later step
            step_on_host(scheduler)
        variant.pipe.scheduler = scheduler
        for name in GUIDER_NAMES:
            if guider := getattr(variant.pipe, name, None):
                guider.guidance_scale = row.parameters.guidance or 0.0


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A call of the pipeline: its rows with padding, its pixels, and its times."""

    rows: Sequence[ImageRow]
    host_copy: HostCopy
    spans: Spans


def to_drawn_image(
    row: ImageRow, rgb: RGB, finite: bool, verdict: ScoreValue = ACCEPTED
) -> DrawnImage:
    """Build a row's image, or the error in its place. `verdict` is the safety checker's."""
    if not finite:
        error = "the model gave numbers that are not finite"
        return DrawnImage(row.index_in_part, None, "blank", error)
    if verdict.value is None:
        error = f"the model's safety checker has no verdict: {verdict.reason}"
        return DrawnImage(row.index_in_part, None, "failed", error)
    if verdict.value:
        error = "the model's safety checker refused it"
        return DrawnImage(row.index_in_part, None, "filtered", error)
    return DrawnImage(row.index_in_part, rgb)


def load_denoiser(
    plan: Plan,
    store: Store | None = None,
    weights: WeightsCheck | None = None,
    placement: Placement | None = None,
) -> Denoiser:
    """Load the denoiser of a plan, with adapters if `store` has the run.

    By default, `placement` is the first that fits the device. Without `store`, the size of each
    batch counts as planned. Raises BadInput if the model does not load or fit, TryAgain if its
    device is missing, full, or fails.
    """
    model = plan.job.model
    with loading(model.id):
        placement = placement or decide_placement(plan)
        pipe = load_pipeline(plan, weights, placement)
        placed = PlacedWeights(pipe, placement, choose_device(plan.job.device))
        loras = None
        if plan.loras and plan.fused_loras is None:
            loras = LoraLayers(pipe, model.loras, plan.loras)
        adapters = None if store is None else load_adapters(pipe, plan, store)
        return Denoiser(
            pipe,
            plan.job.speed,
            loras,
            adapters,
            planned_size=None if store is None else plan.batch_size,
            placed=placed,
            has_references=plan.has_references,
        )
