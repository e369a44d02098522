"""Tables of the differences between diffusers' text-to-image pipelines.

A pipeline in no table takes the plain path: prompts as text, and a generator for each image.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# How a pipeline lays out its first noise, of shape (channels, height, width) of the VAE's latents:
# as it is; squares of 2 x 2 packed into a sequence; or squares of 2 x 2 folded into the channels.
LatentLayout = Literal["whole", "packed", "folded"]
EmbeddingIndices = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Family:
    """Arguments and limits of one family of pipelines.

    `positive_embeds` and `negative_embeds` map arguments to the places of their embeddings in what
    `encode_prompt` returns; without the former, prompts are passed as text.
    `pad_to_tokens` is the length to which the texts of a batch are padded, under their masks, where
    the family would pad to the longest of them; a single text is padded to the next 64 tokens.
    Where no mask hides the padding, or nothing is known, images are drawn `one_at_a_time`.
    `float32_latents`: latents stay in float32 whatever the model's dtype.
    `default_size` and `size_multiple` are in pixels; None: as the model's own files state.
    `compiles` is False if each length of a text would be compiled by itself, or nothing is known.
    `supports_loras` is True for unknown pipelines: only loading one tells.
    `limits_guidance`: some steps can run without the negative prompts. `caches_steps`: its steps
    can be extrapolated, as diffusers does in transformers that have `enable_cache`.
    """

    positive_embeds: EmbeddingIndices = field(default_factory=dict)
    negative_embeds: EmbeddingIndices = field(default_factory=dict)
    latent_layout: LatentLayout = "whole"
    pad_to_tokens: int | None = None
    one_at_a_time: bool = False
    embeds_as_list: bool = False
    float32_latents: bool = False
    default_size: int | None = None
    size_multiple: int | None = None
    compiles: bool = True
    supports_loras: bool = True
    limits_guidance: bool = False
    caches_steps: bool = False


PLAIN_FAMILY = Family(one_at_a_time=True, compiles=False)
_MASKED_EMBEDS = {"prompt_embeds": 0, "prompt_attention_mask": 1}
_NEGATIVE_MASKED_EMBEDS = {"negative_prompt_embeds": 2, "negative_prompt_attention_mask": 3}
_HUNYUAN_EMBEDS = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")
_UNET = Family({"prompt_embeds": 0}, {"negative_prompt_embeds": 1}, limits_guidance=True)
_POOLED = Family(
    {"prompt_embeds": 0, "pooled_prompt_embeds": 2},
    {"negative_prompt_embeds": 1, "negative_pooled_prompt_embeds": 3},
    limits_guidance=True,
)
_T5 = Family(_MASKED_EMBEDS, _NEGATIVE_MASKED_EMBEDS, supports_loras=False, limits_guidance=True)
FAMILIES: Mapping[str, Family] = {
    "StableDiffusionPipeline": _UNET,
    "StableDiffusionXLPipeline": _POOLED,
    "LatentConsistencyModelPipeline": Family({"prompt_embeds": 0}),
    "StableDiffusion3Pipeline": _POOLED,
    # Negative prompts have a scale of their own and double the work: they are not used.
    "FluxPipeline": Family(
        {"prompt_embeds": 0, "pooled_prompt_embeds": 1},
        latent_layout="packed",
        caches_steps=True,
    ),
    "Flux2Pipeline": Family({"prompt_embeds": 0}, latent_layout="folded", caches_steps=True),
    "Flux2KleinPipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 0},
        "folded",
        limits_guidance=True,
        caches_steps=True,
    ),
    "ChromaPipeline": Family(
        {"prompt_embeds": 0, "prompt_attention_mask": 2},
        {"negative_prompt_embeds": 3, "negative_prompt_attention_mask": 5},
        "packed",
        limits_guidance=True,
        caches_steps=True,
    ),
    "PixArtAlphaPipeline": _T5,
    "PixArtSigmaPipeline": _T5,
    "SanaPipeline": Family(
        _MASKED_EMBEDS, _NEGATIVE_MASKED_EMBEDS, size_multiple=32, limits_guidance=True
    ),
    "SanaSprintPipeline": Family(_MASKED_EMBEDS, size_multiple=32),
    "AuraFlowPipeline": Family(
        _MASKED_EMBEDS, _NEGATIVE_MASKED_EMBEDS, default_size=1024, limits_guidance=True
    ),
    # Its transformer truncates a batch to the batch's longest text, and each length would be
    # compiled by itself.
    "Lumina2Pipeline": Family(
        _MASKED_EMBEDS,
        _NEGATIVE_MASKED_EMBEDS,
        one_at_a_time=True,
        compiles=False,
        limits_guidance=True,
    ),
    # One more than the 512 tokens that it reads: diffusers drops a mask without padding, and other
    # kernels would run.
    "QwenImagePipeline": Family(
        {"prompt_embeds": 0, "prompt_embeds_mask": 1},
        {"negative_prompt_embeds": 0, "negative_prompt_embeds_mask": 1},
        "packed",
        pad_to_tokens=513,
        limits_guidance=True,
        caches_steps=True,
    ),
    "ZImagePipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        one_at_a_time=True,
        embeds_as_list=True,
        float32_latents=True,
    ),
    "CogView4Pipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        one_at_a_time=True,
        float32_latents=True,
        limits_guidance=True,
        caches_steps=True,
    ),
    # A text with words in quotes changes the guidance of its whole batch. Its guider carries
    # guidance on to later steps, so that it cannot be limited.
    "HunyuanImagePipeline": Family(
        {name: index for index, name in enumerate(_HUNYUAN_EMBEDS)},
        {f"negative_{name}": index for index, name in enumerate(_HUNYUAN_EMBEDS)},
        one_at_a_time=True,
        default_size=2048,
        size_multiple=64,
        supports_loras=False,
        caches_steps=True,
    ),
}


def family_of(pipeline: str) -> Family:
    """The family of a pipeline, by the name of its class."""
    return FAMILIES.get(text_to_image_class(pipeline), PLAIN_FAMILY)


CHOOSE_TEXT_TO_IMAGE = "Choose a text-to-image model"
# The first match counts: a video pipeline may start from an image too.
UNSUPPORTED_CLASSES: Mapping[str, str] = {
    r"Video|Vid|Animat|ToWorld|[IT]2V|^Wan|^LTX|^Mochi|^Allegro|^Latte|^Helios|^SkyReels"
    r"|^Cosmos(?!2TextToImage)|^Consis|^Chrono|^AnyFlow|^PIA|^SanaWM": (
        f"makes videos. {CHOOSE_TEXT_TO_IMAGE}"
    ),
    r"Audio|Music|^AceStep|^Dance": f"makes sounds. {CHOOSE_TEXT_TO_IMAGE}",
    r"DiffusionGemma|^LLaDA|^ShapE|Protein": f"makes no images. {CHOOSE_TEXT_TO_IMAGE}",
    r"^(DDIM|DDPM|PNDM|LDM|DiT|ScoreSdeVe|KarrasVe|ConsistencyModel|VersatileDiffusion)Pipeline": (
        f"reads no text. {CHOOSE_TEXT_TO_IMAGE}"
    ),
    r"Prior(?!.*Redux)|Decoder|^Kandinsky(V22)?Pipeline|^IFPipeline": (
        "is one stage of a model that draws in several. Choose a single-stage model"
    ),
    r"^Kandinsky(V22)?CombinedPipeline|^UnCLIPPipeline": (
        "draws in several stages, to which a row's sampler cannot be passed. "
        "Choose a single-stage model"
    ),
    r"Img2Img|I2I|Edit(?!ing)|Pix2Pix|In[Pp]aint|RePaint|PaintBy|Fill|Redux|Variation|Upscal|Super"
    r"|Refiner|SRPipe|Depth|Blip|^Cycle|DualGuided|^Marigold|Layered|^VisualCloze|Control|Adapter"
    r"|AttendAndExcite": (f"needs input other than text. {CHOOSE_TEXT_TO_IMAGE}"),
}


def unsupported_reason(pipeline: str) -> str | None:
    """Why a class of pipelines draws no images from text alone, and what to do.

    Judged by the name of the class; None if nothing in it says so.
    """
    for pattern, reason in UNSUPPORTED_CLASSES.items():
        if re.search(pattern, pipeline):
            return reason
    return None


ImageEncoderClass = Literal["CLIPVisionModelWithProjection", "SiglipVisionModel"]


@dataclass(frozen=True, slots=True)
class FamilyVariants:
    """The classes that draw from input images with the components of a pipeline.

    `controlnet` is the class of the ControlNets that it takes, `ip_adapter_encoder` that of the
    image encoder that its IP-Adapters read. `control_with_source`: whether it takes a control image
    and a source image at once; `control_source_and_reference`: and a reference image with these.
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
    """The variants of a pipeline, by the name of its class."""
    return FAMILY_VARIANTS.get(text_to_image_class(pipeline), NO_VARIANTS)


def text_to_image_class(pipeline: str) -> str:
    """The class of a family that draws from text, for that of a model which draws over images.

    SDXL's refiner is such a model.
    """
    for name, variants in FAMILY_VARIANTS.items():
        if variants.image_to_image == pipeline:
            return name
    return pipeline
