"""The pipelines that draw with one set of components: from text alone, from a picture, or within a mask of one."""

from collections.abc import Sequence

import diffusers

from imagekiln.steps.conditioning import Conditioning
from imagekiln.steps.conditioning import Inputs as Arguments
from imagekiln.steps.inputs import Inputs
from imagekiln.steps.rows import ImageRow

FROM_TEXT = diffusers.AutoPipelineForText2Image
FROM_IMAGE = diffusers.AutoPipelineForImage2Image
INPAINT = diffusers.AutoPipelineForInpainting


class Branches:
    """A loaded pipeline and its siblings, which share its components and are made when they are first needed."""

    def __init__(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Take the pipeline that draws from text."""
        self._pipe = pipe
        self._plain = (pipe, Conditioning(pipe))
        self._made: dict[type, tuple[diffusers.DiffusionPipeline, Conditioning]] = {}

    def of(self, pictures: Sequence[str]) -> tuple[diffusers.DiffusionPipeline, Conditioning]:
        """The pipeline for rows with these columns of pictures, and what tells it of them."""
        if "source_image" not in pictures:
            return self._plain
        kind = INPAINT if "mask_image" in pictures else FROM_IMAGE
        if kind not in self._made:
            sibling = kind.from_pipe(self._pipe)
            sibling.set_progress_bar_config(disable=True)
            self._made[kind] = (sibling, self._plain[1].beside(sibling))
        return self._made[kind]


def pictured(rows: Sequence[ImageRow], inputs: Inputs) -> Arguments:
    """What a pipeline is told of the pictures of rows of one shape."""
    first = rows[0].pixels
    told: Arguments = {}
    if first.source_image is not None:
        told["image"] = [inputs.of(row, "source_image") for row in rows]
        told["strength"] = first.strength
    if first.mask_image is not None:
        told["mask_image"] = [inputs.of(row, "mask_image") for row in rows]
    return told
