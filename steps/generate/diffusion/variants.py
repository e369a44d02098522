"""The pipelines that draw with one set of components: from text alone, from a picture, or within a mask of one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeAlias

import diffusers
import torch
from diffusers.utils import BaseOutput

from imagekiln.steps.generate.diffusion.adapters import LoadedAdapters
from imagekiln.steps.generate.diffusion.ip_adapter import ReferenceEmbeddings
from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs, PipelineKwargs
from imagekiln.steps.runs.image import ImageRow, batch_shape

Untyped: TypeAlias = Any  # diffusers has no types


@contextmanager
def per_image_control_noise(
    pipe: diffusers.DiffusionPipeline, generators: object
) -> Iterator[None]:
    """Have the pipeline encode pictures by its images' generators for the length of the block, where it would not."""
    if not isinstance(pipe, diffusers.StableDiffusion3ControlNetPipeline) or not isinstance(
        generators, list
    ):
        yield
        return
    encode = pipe.vae.encode
    pipe.vae.encode = _with_generators(encode, generators)
    try:
        yield
    finally:
        pipe.vae.encode = encode


def _with_generators(encode: Untyped, generators: Sequence[torch.Generator]) -> Untyped:
    @wraps(encode)
    def encoded(pictures: torch.Tensor) -> Untyped:
        found = encode(pictures)
        # With guidance, each picture comes twice: for the negative prompts, then for the others.
        each = [*generators] * (len(pictures) // len(generators))
        found.latent_dist.sample = partial(found.latent_dist.sample, each)
        return found

    return encoded


FROM_TEXT = diffusers.AutoPipelineForText2Image
FROM_IMAGE = diffusers.AutoPipelineForImage2Image
INPAINT = diffusers.AutoPipelineForInpainting


@dataclass(frozen=True, slots=True)
class Variant:
    """A pipeline, and what tells it of a batch."""

    pipe: diffusers.DiffusionPipeline
    inputs: PipelineInputs

    def draw(self, inputs: PipelineKwargs) -> BaseOutput:
        """What the pipeline makes of a batch's inputs. Raises what it raises."""
        with per_image_control_noise(self.pipe, inputs.get("generator")):
            return self.pipe(**inputs, output_type=self.inputs.output_type)


class PipelineVariants:
    """A loaded pipeline and its siblings, which share its components and are made when they are first needed."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        loras: LoraLayers | None = None,
        conditions: LoadedAdapters | None = None,
    ) -> None:
        """Take the pipeline that draws from text, its LoRAs, and what rows have beside their texts."""
        self.text_to_image = Variant(pipe, PipelineInputs(pipe, loras))
        self._conditions = conditions
        self._made: dict[tuple[type, bool], Variant] = {(FROM_TEXT, False): self.text_to_image}
        adapted = conditions is not None and conditions.ip_adapter_scale is not None
        self._references = ReferenceEmbeddings(pipe, conditions) if adapted and conditions else None

    def variant_for(self, pictures: Sequence[str]) -> Variant:
        """The pipeline for rows with these columns of pictures."""
        inside = INPAINT if "mask_image" in pictures else FROM_IMAGE
        which = (inside if "source_image" in pictures else FROM_TEXT, "control_image" in pictures)
        if which not in self._made:
            self._made[which] = self._make_variant(*which)
        return self._made[which]

    def _make_variant(self, kind: type, controlled: bool) -> Variant:
        more = (
            {"controlnet": self._conditions.controlnet} if controlled and self._conditions else {}
        )
        sibling = kind.from_pipe(self.text_to_image.pipe, **more)  # type: ignore[attr-defined]  # diffusers has no types
        sibling.set_progress_bar_config(disable=True)
        if self._references is not None:
            self._references.attach(sibling)
        return Variant(sibling, self.text_to_image.inputs.for_sibling(sibling))

    def image_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """What the pipeline of rows of one shape is told of their pictures."""
        if self._conditions is None:
            return {}
        first, of = rows[0].parameters, self._conditions.image_prefetcher.get_image
        told: PipelineKwargs = {}
        if first.source_image is not None:
            told |= {"image": [of(row, "source_image") for row in rows], "strength": first.strength}
        if first.mask_image is not None:
            told["mask_image"] = [of(row, "mask_image") for row in rows]
        if first.control_image is not None:
            takes = self.variant_for(batch_shape(rows[0]).input_images).inputs.accepts
            name = "control_image" if takes("control_image") else "image"
            told[name] = [of(row, "control_image") for row in rows]
            told["controlnet_conditioning_scale"] = self._conditions.controlnet_scale
        if self._references is not None:
            told |= self._references.pipeline_kwargs(rows)
        self._conditions.image_prefetcher.release(rows)
        return told
