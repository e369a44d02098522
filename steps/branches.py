"""The pipelines that draw with one set of components: from text alone, from a picture, or within a mask of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import diffusers
from diffusers.utils import BaseOutput

from imagekiln.steps.conditioning import Conditioning, Inputs
from imagekiln.steps.conditions import Conditions
from imagekiln.steps.control_noise import own_noise
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.references import References
from imagekiln.steps.rows import ImageRow, shape

FROM_TEXT = diffusers.AutoPipelineForText2Image
FROM_IMAGE = diffusers.AutoPipelineForImage2Image
INPAINT = diffusers.AutoPipelineForInpainting


@dataclass(frozen=True, slots=True)
class Branch:
    """A pipeline, and what tells it of a batch."""

    pipe: diffusers.DiffusionPipeline
    told: Conditioning

    def draw(self, inputs: Inputs) -> BaseOutput:
        """What the pipeline makes of a batch's inputs. Raises what it raises."""
        with own_noise(self.pipe, inputs.get("generator")):
            return self.pipe(**inputs, output_type=self.told.drawn_as)


class Branches:
    """A loaded pipeline and its siblings, which share its components and are made when they are first needed."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        loras: LoraLayers | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        """Take the pipeline that draws from text, its LoRAs, and what rows have beside their texts."""
        self.plain = Branch(pipe, Conditioning(pipe, loras))
        self._conditions = conditions
        self._made: dict[tuple[type, bool], Branch] = {(FROM_TEXT, False): self.plain}
        adapted = conditions is not None and conditions.reference_scale is not None
        self._references = References(pipe, conditions) if adapted and conditions else None

    def of(self, pictures: Sequence[str]) -> Branch:
        """The pipeline for rows with these columns of pictures."""
        inside = INPAINT if "mask_image" in pictures else FROM_IMAGE
        which = (inside if "source_image" in pictures else FROM_TEXT, "control_image" in pictures)
        if which not in self._made:
            self._made[which] = self._sibling(*which)
        return self._made[which]

    def _sibling(self, kind: type, controlled: bool) -> Branch:
        more = {"controlnet": self._conditions.controlnet} if controlled and self._conditions else {}
        sibling = kind.from_pipe(self.plain.pipe, **more)  # type: ignore[attr-defined]  # diffusers has no types
        sibling.set_progress_bar_config(disable=True)
        if self._references is not None:
            self._references.join(sibling)
        return Branch(sibling, self.plain.told.beside(sibling))

    def pictured(self, rows: Sequence[ImageRow]) -> Inputs:
        """What the pipeline of rows of one shape is told of their pictures."""
        if self._conditions is None:
            return {}
        first, of = rows[0].pixels, self._conditions.inputs.of
        told: Inputs = {}
        if first.source_image is not None:
            told |= {"image": [of(row, "source_image") for row in rows], "strength": first.strength}
        if first.mask_image is not None:
            told["mask_image"] = [of(row, "mask_image") for row in rows]
        if first.control_image is not None:
            takes = self.of(shape(rows[0]).pictures).told.accepts
            name = "control_image" if takes("control_image") else "image"
            told[name] = [of(row, "control_image") for row in rows]
            told["controlnet_conditioning_scale"] = self._conditions.control_scale
        if self._references is not None:
            told |= self._references.told(rows)
        self._conditions.inputs.passed(rows)
        return told
