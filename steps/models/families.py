"""Tables of diffusers' text-to-image pipelines: how each is called, and what it supports.

A pipeline in no table takes the plain path: prompts as strings, and a generator for each image.
`make pipeline-calls` writes the table of calls, since planning runs without diffusers.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job

# The layout of a pipeline's initial noise, from (channels, height, width) of the VAE's latents:
# unchanged; squares of 2 x 2 packed into a sequence; or squares of 2 x 2 folded into the channels.
LatentLayout = Literal["whole", "packed", "folded"]
EmbeddingIndices = Mapping[str, int]
ImageEncoderClass = Literal["CLIPVisionModelWithProjection", "SiglipVisionModel"]
CALLS_FILE = Path(__file__).with_name("pipeline_calls.json")


@dataclass(frozen=True, slots=True)
class Family:
    """Arguments, limits and variants of one family of pipelines.

    `positive_embeds` and `negative_embeds` map arguments to indexes of embeddings in the result of
    `encode_prompt`. Without the former, prompts are passed as strings.
    `pad_to_tokens` is the length to which the prompts of a batch are padded, under their masks, if
    the family would pad to the longest of them. A single prompt is padded to the next 64 tokens.
    If no mask hides the padding, images are generated `one_at_a_time`. Without a family, a trial
    decides that.
    `float32_latents`: latents stay in float32 for any dtype of the model.
    `default_size` and `size_multiple` are in pixels; None: as the model's own files state.
    `compiles` is False if each prompt length would be compiled separately.
    `supports_loras` is True for unknown pipelines, since only loading a LoRA tells.
    `limits_guidance`: some steps can run without the negative prompts. `caches_steps`: its steps
    can be extrapolated, as diffusers does in transformers that have `enable_cache`.

    `image_to_image` and `inpaint` are the pipeline classes that start from input images.
    `controlnet` is the class of its ControlNets, `ip_adapter_encoder` the class of the image
    encoder of its IP-Adapters. `control_with_source`: it takes a control image and a source image
    at once. `control_source_and_reference`: it takes these and a reference image.
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
    image_to_image: str | None = None
    inpaint: str | None = None
    controlnet: str | None = None
    ip_adapter_encoder: ImageEncoderClass | None = None
    control_with_source: bool = True
    control_source_and_reference: bool = True


PLAIN_FAMILY = Family()
_MASKED = Family(
    {"prompt_embeds": 0, "prompt_attention_mask": 1},
    {"negative_prompt_embeds": 2, "negative_prompt_attention_mask": 3},
    limits_guidance=True,
)
_POOLED = Family(
    {"prompt_embeds": 0, "pooled_prompt_embeds": 2},
    {"negative_prompt_embeds": 1, "negative_pooled_prompt_embeds": 3},
    limits_guidance=True,
)
_HUNYUAN_EMBEDS = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")
FAMILIES: Mapping[str, Family] = {
    "StableDiffusionPipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        limits_guidance=True,
        image_to_image="StableDiffusionImg2ImgPipeline",
        inpaint="StableDiffusionInpaintPipeline",
        controlnet="ControlNetModel",
        ip_adapter_encoder="CLIPVisionModelWithProjection",
    ),
    "StableDiffusionXLPipeline": replace(
        _POOLED,
        image_to_image="StableDiffusionXLImg2ImgPipeline",
        inpaint="StableDiffusionXLInpaintPipeline",
        controlnet="ControlNetModel",
        ip_adapter_encoder="CLIPVisionModelWithProjection",
    ),
    "LatentConsistencyModelPipeline": Family(
        {"prompt_embeds": 0}, image_to_image="LatentConsistencyModelImg2ImgPipeline"
    ),
    "StableDiffusion3Pipeline": replace(
        _POOLED,
        image_to_image="StableDiffusion3Img2ImgPipeline",
        inpaint="StableDiffusion3InpaintPipeline",
        controlnet="SD3ControlNetModel",
        ip_adapter_encoder="SiglipVisionModel",
        control_with_source=False,
    ),
    # Negative prompts have a separate scale and double the work, so they are not used.
    "FluxPipeline": Family(
        {"prompt_embeds": 0, "pooled_prompt_embeds": 1},
        latent_layout="packed",
        caches_steps=True,
        image_to_image="FluxImg2ImgPipeline",
        inpaint="FluxInpaintPipeline",
        controlnet="FluxControlNetModel",
        ip_adapter_encoder="CLIPVisionModelWithProjection",
        control_source_and_reference=False,
    ),
    # It draws only what a mask covers.
    "FluxFillPipeline": Family(
        {"prompt_embeds": 0, "pooled_prompt_embeds": 1},
        latent_layout="packed",
        inpaint="FluxFillPipeline",
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
    "PixArtAlphaPipeline": replace(_MASKED, supports_loras=False),
    "PixArtSigmaPipeline": replace(_MASKED, supports_loras=False),
    "SanaPipeline": replace(_MASKED, size_multiple=32),
    "SanaSprintPipeline": Family(_MASKED.positive_embeds, size_multiple=32),
    "AuraFlowPipeline": replace(_MASKED, default_size=1024),
    # Its transformer truncates a batch to its longest prompt, and each length would be compiled
    # separately.
    "Lumina2Pipeline": replace(_MASKED, one_at_a_time=True, compiles=False),
    # One more than the 512 tokens that it reads: diffusers drops a mask without padding, and
    # different kernels would run.
    "QwenImagePipeline": Family(
        {"prompt_embeds": 0, "prompt_embeds_mask": 1},
        {"negative_prompt_embeds": 0, "negative_prompt_embeds_mask": 1},
        "packed",
        pad_to_tokens=513,
        limits_guidance=True,
        caches_steps=True,
        image_to_image="QwenImageImg2ImgPipeline",
        inpaint="QwenImageInpaintPipeline",
    ),
    # It pads each prompt to the same length, and zeroes the padding.
    "OvisImagePipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        "packed",
        supports_loras=False,
        caches_steps=True,
    ),
    "ZImagePipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        one_at_a_time=True,
        embeds_as_list=True,
        float32_latents=True,
        image_to_image="ZImageImg2ImgPipeline",
        inpaint="ZImageInpaintPipeline",
    ),
    "CogView4Pipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        one_at_a_time=True,
        float32_latents=True,
        limits_guidance=True,
        caches_steps=True,
    ),
    # A prompt with words in quotes changes the guidance of its whole batch. The guider carries
    # state to later steps, so guidance cannot be limited to an interval.
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
    """Return the family of a pipeline, by the name of its class."""
    return FAMILIES.get(text_to_image_class(pipeline), PLAIN_FAMILY)


def fills_masks(pipeline: str) -> bool:
    """Return whether a pipeline, by the name of its class, draws only what a mask covers."""
    return family_of(pipeline).inpaint == pipeline


def text_to_image_class(pipeline: str) -> str:
    """Return the text-to-image class of a family for its image-to-image class, as of a refiner."""
    for name, family in FAMILIES.items():
        if family.image_to_image == pipeline:
            return name
    return pipeline


CHOOSE_TEXT_TO_IMAGE = "Choose a text-to-image model"
# The first match counts: a video pipeline may start from an image too.
UNSUPPORTED_CLASSES: Mapping[str, str] = {
    r"Video|Vid|Animat|ToWorld|[IT]2V|^Wan|^LTX|^Mochi|^Allegro|^Latte|^Helios|^SkyReels"
    r"|^Cosmos(?!2TextToImage)|^Consis|^Chrono|^AnyFlow|^PIA|^SanaWM|^Lucy": (
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
    r"Layered": f"draws several layers for a prompt. {CHOOSE_TEXT_TO_IMAGE}",
    r"GLIGEN": f"needs boxes. {CHOOSE_TEXT_TO_IMAGE}",
    r"Img2Img|Edits|DiffEdit|Pix2PixZero|In[Pp]aint|RePaint|PaintBy|Redux|Variation|Upscal|Super"
    r"|Refiner|SRPipe|Depth|Blip|^Cycle|DualGuided|^Marigold|^VisualCloze|Control|Adapter"
    r"|AttendAndExcite": (f"needs input other than text. {CHOOSE_TEXT_TO_IMAGE}"),
}


def unsupported_reason(pipeline: str) -> str | None:
    """Return why a class, by its name, cannot generate images from a prompt; None if it may."""
    for pattern, reason in UNSUPPORTED_CLASSES.items():
        if re.search(pattern, pipeline):
            return reason
    return None


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The defaults of a pipeline's call, and how it reads guidance and negative prompts.

    `guidance_argument` is None if it reads no guidance. Without a default for it, the pipeline
    has its own schedule, for `schedule_steps` steps. With guidance above `guided_above`, the
    denoiser runs twice per step; None: it never does. Otherwise negative prompts have no effect.
    `rescales_guidance`: it takes a `guidance_rescale`.

    `images_argument` takes up to `max_images` reference images, which it needs if `needs_images`.
    Without `takes_size`, its images have the shape of the reference image and a size of its own.
    """

    steps: int = 0
    guidance_argument: str | None = None
    guidance: float | None = None
    schedule_steps: int | None = None
    guided_above: float | None = None
    takes_negative_prompt: bool = False
    rescales_guidance: bool = False
    images_argument: str | None = None
    max_images: int = 1
    needs_images: bool = False
    takes_size: bool = True

    def is_guided(self, guidance: float | None) -> bool:
        """Return whether the denoiser runs twice per step at this guidance."""
        if guidance is None:
            return self.schedule_steps is not None
        return self.guided_above is not None and guidance > self.guided_above


# For classes that the table lacks: the arguments are only known when it runs.
UNKNOWN_CALL = CallSignature(
    guidance_argument="guidance_scale", takes_negative_prompt=True, images_argument="image"
)


def known_call_of(pipeline: str) -> CallSignature:
    """Return the call of a pipeline, by the name of its class."""
    return _read_table().get(text_to_image_class(pipeline), UNKNOWN_CALL)


@cache
def _read_table() -> Mapping[str, CallSignature]:
    table = json.loads(CALLS_FILE.read_text(encoding="utf-8"))
    return {name: CallSignature(**values) for name, values in table.items()}


def require_pipeline_support(job: Job, pipeline: str, quantized: str | None = None) -> None:
    """Raise BadInput if the pipeline's class does not support the job's shortcuts or LoRAs.

    `quantized` is the method by which its denoiser is quantized.
    """
    speed = job.speed
    family = family_of(pipeline)
    if speed.quantization != "none" and job.model.dtype != "bfloat16":
        raise BadInput(
            f"speed.quantization is {speed.quantization}, which needs bfloat16, but model.dtype is "
            f"{job.model.dtype}. Set model.dtype to bfloat16."
        )
    for setting, is_set in {
        f"speed.quantization: {speed.quantization}": speed.quantization != "none",
        "model.loras": bool(job.model.loras),
    }.items():
        if quantized is not None and is_set:
            raise BadInput(
                f"{setting} does not work with {job.model.id}, whose denoiser is quantized already "
                f"({quantized}). Remove it, or choose the model before quantization."
            )
    unsupported = {
        "model.loras": bool(job.model.loras) and not family.supports_loras,
        "speed.guidance_interval": speed.guidance_interval is not None
        and not family.limits_guidance,
        "speed.step_cache": speed.step_cache is not None and not family.caches_steps,
    }
    for setting, applies in unsupported.items():
        if applies:
            raise BadInput(
                f"{setting} does not work with {pipeline}. Remove it, or choose another model."
            )


def require_quantizable_loras(job: Job) -> None:
    """Raise BadInput if LoRAs of single rows would change quantized layers."""
    method = job.speed.quantization
    if method != "none" and job.model.loras:
        raise BadInput(
            f"speed.quantization is {method}, which works with LoRAs only if all rows share them. "
            "Name them in defaults.loras, and remove the column loras from the prompts or sweep, "
            "or set columns.loras to null. Or set speed.quantization to none."
        )
