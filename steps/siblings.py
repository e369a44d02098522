"""Which pipelines of a family take pictures: their classes by name, so that planning needs no diffusers.

The names are those of diffusers' own tables (AutoPipelineForImage2Image and AutoPipelineForInpainting), for the
families whose calls were tested here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ImageEncoderClass = Literal["CLIPVisionModelWithProjection", "SiglipVisionModel"]


@dataclass(frozen=True, slots=True)
class FamilyVariants:
    """The classes that draw with the components of a pipeline. `control` is the class of the ControlNet that it takes.

    `reference` is the class of the image encoder that its IP-Adapters read. `control_source`: whether it takes a
    control picture beside a source; `all_three`: and beside these a reference.
    """

    image_to_image: str | None = None
    inpaint: str | None = None
    controlnet: str | None = None
    control_with_source: bool = True
    ip_adapter_encoder: ImageEncoderClass | None = None
    control_source_and_reference: bool = True


NO_VARIANTS = FamilyVariants()
CLIP_ENCODER: ImageEncoderClass = "CLIPVisionModelWithProjection"
FAMILY_VARIANTS: Mapping[str, FamilyVariants] = {
    "StableDiffusionPipeline": FamilyVariants(
        "StableDiffusionImg2ImgPipeline",
        "StableDiffusionInpaintPipeline",
        "ControlNetModel",
        ip_adapter_encoder=CLIP_ENCODER,
    ),
    "StableDiffusionXLPipeline": FamilyVariants(
        "StableDiffusionXLImg2ImgPipeline",
        "StableDiffusionXLInpaintPipeline",
        "ControlNetModel",
        ip_adapter_encoder=CLIP_ENCODER,
    ),
    "LatentConsistencyModelPipeline": FamilyVariants("LatentConsistencyModelImg2ImgPipeline"),
    "StableDiffusion3Pipeline": FamilyVariants(
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "SD3ControlNetModel",
        control_with_source=False,
        ip_adapter_encoder="SiglipVisionModel",
    ),
    "FluxPipeline": FamilyVariants(
        "FluxImg2ImgPipeline",
        "FluxInpaintPipeline",
        "FluxControlNetModel",
        ip_adapter_encoder=CLIP_ENCODER,
        control_source_and_reference=False,
    ),
    "QwenImagePipeline": FamilyVariants("QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"),
    "ZImagePipeline": FamilyVariants("ZImageImg2ImgPipeline", "ZImageInpaintPipeline"),
}


def variants_of(pipeline: str) -> FamilyVariants:
    """What else draws with the components of a pipeline, by the name of its class."""
    return FAMILY_VARIANTS.get(pipeline, NO_VARIANTS)
