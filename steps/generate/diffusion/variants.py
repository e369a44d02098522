"""The pipelines that share one set of components: text-to-image, image-to-image, inpainting."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import diffusers
from diffusers.utils import BaseOutput
from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.adapters import (
    REFERENCE_COLUMN,
    LoadedAdapters,
    image_requests,
)
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.patches import (
    per_image_control_noise,
    restored_vae_dtype,
)
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs, PipelineKwargs
from imagekiln.steps.generate.diffusion.placing import PlacedWeights
from imagekiln.steps.job.columns import SCHEDULERS
from imagekiln.steps.models.families import fills_masks
from imagekiln.steps.runs.image import ImageRow, batch_shape

# Imported on use: each imports all families, half a second that most pods can save.
TEXT_TO_IMAGE = "AutoPipelineForText2Image"
IMAGE_TO_IMAGE = "AutoPipelineForImage2Image"
INPAINTING = "AutoPipelineForInpainting"


def make_scheduler(own: diffusers.SchedulerMixin, sampler: str) -> diffusers.SchedulerMixin:
    """Build the scheduler of a sampler from the configuration of the model's own scheduler."""
    if sampler == "default":
        return own
    spec = SCHEDULERS[sampler]
    scheduler_class = getattr(diffusers, spec.class_name)
    own_class = type(own)
    compatible = {own_class, *own.compatibles}
    # LCM's scheduler lists no compatible classes, but takes the configurations that DDIM's takes.
    fits_as_lcm = sampler == "lcm" and diffusers.DDIMScheduler in compatible
    if scheduler_class not in compatible and not fits_as_lcm:
        raise ValueError(
            f"sampler {sampler!r} does not fit this model, which came with {own_class.__name__}"
        )
    return scheduler_class.from_config(own.config, **spec.config)


class Schedulers:
    """Creates the schedulers of one pipeline by the sampler's name, a new one for each batch.

    diffusers' schedulers change as they run: `DPMSolverSinglestepScheduler.set_timesteps` modifies
    its configuration for an odd number of steps.
    """

    def __init__(self, own: diffusers.SchedulerMixin) -> None:
        """Take the pipeline's own scheduler, before it has run."""
        self._unused = {"default": copy.deepcopy(own)}

    def new(self, sampler: str) -> diffusers.SchedulerMixin:
        """Return an unused scheduler. Raises ValueError if the sampler does not fit the model."""
        if sampler not in self._unused:
            self._unused[sampler] = make_scheduler(self._unused["default"], sampler)
        return copy.deepcopy(self._unused[sampler])


@dataclass(frozen=True, slots=True)
class Variant:
    """A pipeline with the builder of its arguments and its schedulers."""

    pipe: diffusers.DiffusionPipeline
    inputs: PipelineInputs
    schedulers: Schedulers

    def draw(self, kwargs: PipelineKwargs) -> BaseOutput:
        """Call the pipeline with a batch's arguments. Raises any error of the pipeline."""
        control_noise = per_image_control_noise(self.pipe, kwargs.get("generator"))
        with control_noise, restored_vae_dtype(self.pipe):
            try:
                return self.pipe(**kwargs, output_type=self.inputs.output_type)
            except BaseException:
                self.pipe.maybe_free_model_hooks()  # else offloaded components stay on the device
                raise


class PipelineVariants:
    """A loaded pipeline and its siblings, which share its components and are built on first use."""

    def __init__(
        self,
        placed: PlacedWeights,
        loras: LoraLayers | None = None,
        adapters: LoadedAdapters | None = None,
    ) -> None:
        """Take the text-to-image pipeline, its LoRAs and its adapters."""
        pipe = placed.pipe
        inputs = PipelineInputs(placed, loras)
        self.text_to_image = Variant(pipe, inputs, Schedulers(pipe.scheduler))
        self._adapters = adapters
        self._variants: dict[tuple[str, bool], Variant] = {
            (TEXT_TO_IMAGE, False): self.text_to_image
        }

    def variant_for(self, input_images: Sequence[str]) -> Variant:
        """Return the pipeline for rows that have input images in these columns."""
        auto_class = TEXT_TO_IMAGE
        if "source_image" in input_images:
            auto_class = INPAINTING if "mask_image" in input_images else IMAGE_TO_IMAGE
        if auto_class == INPAINTING and fills_masks(type(self.text_to_image.pipe).__name__):
            return self.text_to_image
        key = (auto_class, "control_image" in input_images)
        if key not in self._variants:
            self._variants[key] = self._make_variant(*key)
        return self._variants[key]

    def _make_variant(self, auto_class: str, with_control: bool) -> Variant:
        # A pipeline may change its scheduler's settings, as Stable Diffusion's does with
        # `clip_sample`, so it gets a scheduler that no other pipeline uses.
        own = self.text_to_image
        adapters = self._adapters
        components = {"scheduler": own.schedulers.new("default")}
        if with_control and adapters is not None:
            components["controlnet"] = adapters.controlnet
        pipe = getattr(diffusers, auto_class).from_pipe(own.pipe, **components)
        pipe.set_progress_bar_config(disable=True)
        if adapters is not None and adapters.references is not None:
            adapters.references.attach(pipe)
        inputs = own.inputs.for_sibling(pipe)
        return Variant(pipe, inputs, Schedulers(pipe.scheduler))

    def image_kwargs(
        self, rows: Sequence[ImageRow], over: Mapping[int, Pillow.Image] | None = None
    ) -> PipelineKwargs:
        """Build the arguments for the input images of rows of one shape.

        The images `over`, by index in the part, replace them.
        """
        strength = rows[0].parameters.strength
        if over is not None:
            images = [over[row.index_in_part] for row in rows]
            if rows[0].parameters.source_image is None:
                return self.text_to_image.inputs.reference_kwargs(rows[0], images)
            return {"image": images, "strength": strength}
        if self._adapters is None:
            return {}
        adapters = self._adapters
        adapters.images.prefetch(rows)
        columns = batch_shape(rows[0]).input_images
        accepts = self.variant_for(columns).inputs.accepts
        names = {"source_image": "image", "mask_image": "mask_image"}
        names["control_image"] = "control_image" if accepts("control_image") else "image"
        kwargs: PipelineKwargs = {
            names[column]: [
                adapters.images.get(request)
                for row in rows
                for request in image_requests(row, column)
            ]
            for column in columns
            if column in names
        }
        if "source_image" in columns:
            kwargs["strength"] = strength
        if "control_image" in columns:
            kwargs["controlnet_conditioning_scale"] = adapters.controlnet_scale
        if adapters.references is not None:
            kwargs |= adapters.references.pipeline_kwargs(rows)
        elif REFERENCE_COLUMN in columns:
            (row,) = rows
            references = [*map(adapters.images.get, image_requests(row, REFERENCE_COLUMN))]
            kwargs |= self.text_to_image.inputs.reference_kwargs(row, references)
        return kwargs
