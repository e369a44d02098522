"""Which pipelines of a family take pictures: their classes by name, so that planning needs no diffusers.

The names are those of diffusers' own tables (AutoPipelineForImage2Image and AutoPipelineForInpainting), for the
families whose calls were tested here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ImageEncoder = Literal["CLIPVisionModelWithProjection", "SiglipVisionModel"]


@dataclass(frozen=True, slots=True)
class Siblings:
    """The classes that draw with the components of a pipeline. `control` is the class of the ControlNet that it takes.

    `reference` is the class of the image encoder that its IP-Adapters read. `control_source`: whether it takes a
    control picture beside a source; `all_three`: and beside these a reference.
    """

    from_image: str | None = None
    inpaint: str | None = None
    control: str | None = None
    control_source: bool = True
    reference: ImageEncoder | None = None
    all_three: bool = True


NONE = Siblings()
CLIP: ImageEncoder = "CLIPVisionModelWithProjection"
SIBLINGS: Mapping[str, Siblings] = {
    "StableDiffusionPipeline": Siblings(
        "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline", "ControlNetModel", reference=CLIP
    ),
    "StableDiffusionXLPipeline": Siblings(
        "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline", "ControlNetModel", reference=CLIP
    ),
    "LatentConsistencyModelPipeline": Siblings("LatentConsistencyModelImg2ImgPipeline"),
    "StableDiffusion3Pipeline": Siblings(
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "SD3ControlNetModel",
        control_source=False,
        reference="SiglipVisionModel",
    ),
    "FluxPipeline": Siblings(
        "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxControlNetModel", reference=CLIP, all_three=False
    ),
    "QwenImagePipeline": Siblings("QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"),
    "ZImagePipeline": Siblings("ZImageImg2ImgPipeline", "ZImageInpaintPipeline"),
}


def siblings(pipeline: str) -> Siblings:
    """What else draws with the components of a pipeline, by the name of its class."""
    return SIBLINGS.get(pipeline, NONE)
