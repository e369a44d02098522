"""Passes over chosen images: upscale, refine, caption.

Passes run in the thread of the denoiser, since a pass may use its model. Batches are padded to the
planned size, so that an image does not depend on its neighbors.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image as Pillow

from imagekiln.steps.errors import in_setting
from imagekiln.steps.generate.diffusion.denoiser import (
    Denoiser,
    load_denoiser,
    to_drawn_image,
)
from imagekiln.steps.generate.diffusion.image_models import (
    Describe,
    Upscale,
    load_captioner,
    load_upscaler,
)
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.encoder import mark_flat
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.imaging.input_images import resize_to_cover
from imagekiln.steps.job.passes import AnyPass, CaptionPass, RefinePass, UpscalePass
from imagekiln.steps.models.passes import PASSES_PREFIX
from imagekiln.steps.models.performance import limit_batch_pixels
from imagekiln.steps.runs.image import (
    DrawnImage,
    ImageParameters,
    ImageRow,
    PassedImages,
    group_by_shape,
)
from imagekiln.steps.runs.plan import Plan, iter_pass_plans
from imagekiln.steps.storage.store import Store

OWN_IMAGE = "own"  # in place of an input image's hash: the image itself
SEED_BITS = 52  # the same as in seeds that plans derive
Check = Callable[[], None]
Images = Sequence[DrawnImage]
# Runs a pass on rows and the pixels of their images, in a batch of the given size.
RunBatch = Callable[[Sequence[ImageRow], Sequence[RGB], int, Check], Sequence[DrawnImage]]
PassRow = Callable[[ImageRow], ImageRow]


class ImagePass:
    """One pass over images, in batches that fit in memory."""

    def __init__(
        self,
        name: str,
        run_batch: RunBatch,
        planned_size: Callable[[ImageRow], int],
        pass_row: PassRow = lambda row: row,
        own_denoiser: Denoiser | None = None,
    ) -> None:
        """Take the function that runs a batch, and the function that plans a row's batch size.

        `pass_row` converts a row for the pass. `own_denoiser` is the pass's own model, if any.
        """
        self.name = name
        self._run_batch = run_batch
        self._pass_row = pass_row
        self._own_denoiser = own_denoiser
        self._pixels: dict[int, RGB] = {}
        self._check: Check = lambda: None
        self._recovery = BatchRecovery(self._draw, planned_size, f"{PASSES_PREFIX}{name}")

    def __call__(
        self, images: Images, rows: Sequence[ImageRow], check: Check
    ) -> dict[int, DrawnImage]:
        """Run the pass on the images that are ok. Return the results by index in the part.

        `check` is called between steps, and may raise to cancel.
        """
        self._check = check
        self._pixels = {
            image.index_in_part: image.rgb
            for image in images
            if image.rgb is not None and image.status == "ok"
        }
        chosen = [self._pass_row(row) for row in rows if row.index_in_part in self._pixels]
        done: dict[int, DrawnImage] = {}
        for group in group_by_shape(chosen):
            for batch in self._recovery.draw_batches(group):
                done.update((image.index_in_part, image) for image in batch)
        self._pixels = {}
        return done

    def close(self) -> None:
        """Stop the threads of the pass's own diffusion model."""
        if self._own_denoiser is not None:
            self._own_denoiser.close()

    def _draw(self, rows: Sequence[ImageRow], size: int) -> Sequence[DrawnImage]:
        self._check()
        pixels = [self._pixels[row.index_in_part] for row in rows]
        return list(self._run_batch(rows, pixels, size, self._check))


class ImagePasses:
    """The passes of a job, one after another."""

    def __init__(self, passes: Sequence[ImagePass]) -> None:
        """Take the passes in the order of the job."""
        self._passes = passes

    def __call__(
        self, images: Images, rows: Sequence[ImageRow], check: Check = lambda: None
    ) -> PassedImages:
        """Run all passes on the images. Images that are not ok are returned unchanged."""
        results = {image.index_in_part: mark_flat(image) for image in images}
        seconds: dict[str, float] = {}
        for image_pass in self._passes:
            started = time.perf_counter()
            for index, image in image_pass([*results.values()], rows, check).items():
                results[index] = _join(results[index], image)
            seconds[image_pass.name] = time.perf_counter() - started
        return PassedImages([results[row.index_in_part] for row in rows], seconds)

    def close(self) -> None:
        """Stop the threads of the passes' own diffusion models."""
        for image_pass in self._passes:
            image_pass.close()


def load_passes(
    plan: Plan,
    store: Store,
    device: torch.device,
    denoiser: Denoiser,
) -> ImagePasses:
    """Load the passes of a run or retry in `store`.

    A refine pass uses `denoiser` unless it names another model.
    """
    own_plans = dict(iter_pass_plans(plan))
    passes = []
    for position, (name, settings) in enumerate(plan.job.passes.items()):
        setting = f"{PASSES_PREFIX}{name}"
        own_denoiser = None
        if isinstance(settings, UpscalePass):
            digest = plan.passes[name].digest
            run_batch = _upscale_with(load_upscaler(setting, settings, digest, device))
        elif isinstance(settings, CaptionPass):
            digest = plan.passes[name].digest
            run_batch = _caption_with(name, load_captioner(setting, settings, digest, device))
        elif name in own_plans:
            with in_setting(setting):
                placement = denoiser.placement  # it is that of all models together
                own_denoiser = load_denoiser(own_plans[name], store, placement=placement)
            run_batch = _refine_with(own_denoiser, denoiser)
        else:
            run_batch = _refine_with(denoiser)
        planned_size = partial(_planned_size, plan, settings)
        pass_row = partial(_pass_row, plan, position, settings)
        passes.append(ImagePass(name, run_batch, planned_size, pass_row, own_denoiser))
    return ImagePasses(passes)


def _pass_row(plan: Plan, position: int, settings: AnyPass, row: ImageRow) -> ImageRow:
    """Return the row for the pass at this position, with the pass's output size."""
    parameters = row.parameters
    drawn = (parameters.width, parameters.height)
    width, height = plan.pass_sizes.sizes_by_pass(drawn)[position]
    parameters = replace(parameters, width=width, height=height)
    if isinstance(settings, RefinePass):
        parameters = _refined(parameters, settings, position)
    return replace(row, parameters=parameters)


def pass_seed(seed: int, position: int) -> int:
    """Derive the noise seed of a pass, distinct from the seeds of the image and its neighbors."""
    digest = hashlib.sha256(f"pass|{position}|{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


def _upscale_with(upscale: Upscale) -> RunBatch:
    def run_batch(
        rows: Sequence[ImageRow], pixels: Sequence[RGB], size: int, _: Check
    ) -> list[DrawnImage]:
        images = []
        for row, (rgb, finite) in zip(rows, upscale(pixels, size), strict=True):
            height, width = rgb.shape[:2]
            planned = (row.parameters.width, row.parameters.height)
            if (width, height) != planned:
                raise ValueError(f"the model gave {width} x {height} pixels, planned are {planned}")
            images.append(to_drawn_image(row, rgb, finite))
        return images

    return run_batch


def _refine_with(denoiser: Denoiser, drawing: Denoiser | None = None) -> RunBatch:
    """Build the image-to-image function of a pass. `drawing` prefetches no prompts meanwhile."""

    def run_batch(
        rows: Sequence[ImageRow], pixels: Sequence[RGB], size: int, check: Check
    ) -> Sequence[DrawnImage]:
        own_images = {}
        for row, rgb in zip(rows, pixels, strict=True):
            parameters = row.parameters
            image = resize_to_cover(Pillow.fromarray(rgb), parameters.width, parameters.height)
            own_images[row.index_in_part] = image
        if drawing is not None:
            drawing.finish_texts()
        return denoiser.draw_over(rows, own_images, size, check)

    return run_batch


def _caption_with(name: str, describe: Describe) -> RunBatch:
    def run_batch(
        rows: Sequence[ImageRow], pixels: Sequence[RGB], size: int, _: Check
    ) -> list[DrawnImage]:
        captions = describe(pixels, size)
        return [
            DrawnImage(row.index_in_part, rgb, captions={name: caption})
            for row, rgb, caption in zip(rows, pixels, captions, strict=True)
        ]

    return run_batch


def _refined(parameters: ImageParameters, settings: RefinePass, position: int) -> ImageParameters:
    """Return the parameters of a refine pass: image-to-image with the row's prompt, or an edit."""
    if settings.model is not None:
        # LoRAs and adapters belong to the job's own model.
        parameters = replace(parameters, loras=None, control_image=None, reference_images=None)
    steps = parameters.steps if settings.steps is None else settings.steps
    guidance = settings.guidance
    if guidance is None and settings.model is None:
        guidance = parameters.guidance
    own_image: dict[str, Any] = {"source_image": OWN_IMAGE, "strength": settings.strength}
    if settings.prompt is not None:
        own_image = {
            "prompt": settings.prompt.replace("{prompt}", parameters.prompt),
            "negative_prompt": "",
            "source_image": None,
            "reference_images": OWN_IMAGE,
            "strength": None,
        }
    return replace(
        parameters,
        seed=pass_seed(parameters.seed, position),
        steps=steps,
        guidance=None if guidance is None else guidance + 0.0,  # never -0.0
        sampler=settings.sampler or parameters.sampler,
        mask_image=None,
        **own_image,
    )


def _planned_size(plan: Plan, settings: AnyPass, row: ImageRow) -> int:
    """Return the batch size that gives a pass as many pixels as a generated batch.

    Caption models scale images to a fixed size, so theirs is the largest planned batch size.
    """
    if isinstance(settings, CaptionPass):
        return plan.max_batch_size
    tuned = (batch.width * batch.height * batch.images for batch in plan.batch_sizes)
    pixels = max(tuned, default=plan.width * plan.height * plan.max_batch_size)
    return limit_batch_pixels(
        plan.max_batch_size, row.parameters.width * row.parameters.height, pixels
    )


def _join(before: DrawnImage, after: DrawnImage) -> DrawnImage:
    """Merge the result of a pass into the image before it."""
    captions = {**before.captions, **after.captions} if after.status == "ok" else {}
    return replace(before, rgb=after.rgb, status=after.status, error=after.error, captions=captions)
