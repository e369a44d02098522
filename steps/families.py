"""What differs between the families of diffusers' text-to-image pipelines: one small table.

A pipeline that stands in no row takes the plain path: prompts as text, and a generator for each image.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# How a pipeline takes its first noise, by what it makes of (channels, height, width) of the VAE's latents:
# the same; squares of 2 x 2 packed into a sequence; or squares of 2 x 2 folded into the channels.
Latents = Literal["whole", "packed", "folded"]
Places = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `positive` and `negative` name arguments and where `encode_prompt` returns their embeddings.

    Without `positive`, prompts go as text. `guidance` names the argument for a row's guidance; up to `unguided`, it
    leaves the negative prompt out. `padded` is the number of tokens to which the texts of a batch are padded, under
    their masks, where the family would pad to the longest of them. Where no mask hides the padding, or nothing is
    known, `alone` draws one image at a time. `listed` embeddings go as a list. `float32` latents stay so in models of
    any dtype. `side` is the default size and `multiple` what sizes must be a multiple of, both in pixels; None: as the
    model's own files say. `loras` says whether the pipeline takes any; of one that is not known, only loading it tells.
    """

    positive: Places = field(default_factory=dict)
    negative: Places = field(default_factory=dict)
    latents: Latents = "whole"
    guidance: str = "guidance_scale"
    padded: int | None = None
    alone: bool = False
    listed: bool = False
    unguided: float = 1.0
    float32: bool = False
    side: int | None = None
    multiple: int | None = None
    compiled: Literal["regional", "whole", "none"] = "none"
    loras: bool = True

    def guided(self, guidance: float) -> bool:
        """Whether the denoiser runs twice a step, the second time for the negative prompt."""
        return bool(self.negative) and guidance > self.unguided


PLAIN = Family(alone=True)

_MASKED = {"prompt_embeds": 0, "prompt_attention_mask": 1}
_NOT_MASKED = {"negative_prompt_embeds": 2, "negative_prompt_attention_mask": 3}
_HUNYUAN = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")

_UNET = Family({"prompt_embeds": 0}, {"negative_prompt_embeds": 1}, compiled="whole")
_POOLED = Family(
    {"prompt_embeds": 0, "pooled_prompt_embeds": 2},
    {"negative_prompt_embeds": 1, "negative_pooled_prompt_embeds": 3},
    compiled="whole",
)
_T5 = Family(_MASKED, _NOT_MASKED, compiled="whole", loras=False)

# Compiling by region takes a model that names its repeated blocks; the others are compiled whole.
FAMILIES: Mapping[str, Family] = {
    "StableDiffusionPipeline": _UNET,
    "StableDiffusionXLPipeline": _POOLED,
    "LatentConsistencyModelPipeline": Family({"prompt_embeds": 0}, compiled="whole"),
    "StableDiffusion3Pipeline": _POOLED,
    # Its negative prompts would double the work by another scale than guidance, so they are not read.
    "FluxPipeline": Family(
        {"prompt_embeds": 0, "pooled_prompt_embeds": 1},
        latents="packed",
        compiled="regional",
    ),
    "Flux2Pipeline": Family({"prompt_embeds": 0}, latents="folded", compiled="regional"),
    "Flux2KleinPipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 0},
        "folded",
        compiled="regional",
    ),
    "ChromaPipeline": Family(
        {"prompt_embeds": 0, "prompt_attention_mask": 2},
        {"negative_prompt_embeds": 3, "negative_prompt_attention_mask": 5},
        "packed",
        compiled="regional",
    ),
    "PixArtAlphaPipeline": _T5,
    "PixArtSigmaPipeline": _T5,
    "SanaPipeline": Family(_MASKED, _NOT_MASKED, multiple=32, compiled="whole"),
    "SanaSprintPipeline": Family(_MASKED, multiple=32, compiled="whole"),
    "AuraFlowPipeline": Family(_MASKED, _NOT_MASKED, side=1024, compiled="whole"),
    # Its transformer cuts a batch to the longest text of it.
    "Lumina2Pipeline": Family(_MASKED, _NOT_MASKED, alone=True, compiled="whole"),
    # One more than the 512 tokens that it reads: a mask without padding would be dropped, and other kernels used.
    "QwenImagePipeline": Family(
        {"prompt_embeds": 0, "prompt_embeds_mask": 1},
        {"negative_prompt_embeds": 0, "negative_prompt_embeds_mask": 1},
        "packed",
        "true_cfg_scale",
        padded=513,
        compiled="regional",
    ),
    "ZImagePipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        alone=True,
        listed=True,
        unguided=0.0,
        float32=True,
        compiled="regional",
    ),
    "CogView4Pipeline": Family(
        {"prompt_embeds": 0},
        {"negative_prompt_embeds": 1},
        alone=True,
        float32=True,
        compiled="whole",
    ),
    # A text with words in quotes changes how its whole batch is guided.
    "HunyuanImagePipeline": Family(
        {name: place for place, name in enumerate(_HUNYUAN)},
        {f"negative_{name}": place for place, name in enumerate(_HUNYUAN)},
        guidance="distilled_guidance_scale",
        alone=True,
        side=2048,
        multiple=64,
        compiled="regional",
        loras=False,
    ),
}


def family(pipeline: str) -> Family:
    """The family of a pipeline, by the name of its class."""
    return FAMILIES.get(pipeline, PLAIN)
