"""The text `parameters` that Stable Diffusion web UIs write into an image and read back.

Readers take the last line for the settings and a line that begins with `Negative prompt:` for the
end of the prompt, and strip white space around lines. Quoted values are JSON. LoRAs are in the
prompt as <lora:name:weight>, and in the settings by the hashes of their tensors. `Size` is that in
which an image was drawn: with the seed, it gives the noise.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from imagekiln.steps.imaging.metadata import program_version
from imagekiln.steps.job.passes import RefinePass, UpscalePass, alters_pixels
from imagekiln.steps.job.samplers import SCHEDULERS
from imagekiln.steps.models.loras import LoraFacts, format_weight, lora_weights
from imagekiln.steps.models.passes import NO_PASSES, PassSizes, Size
from imagekiln.steps.models.resolve import shortcuts_label
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.plan import Plan

NEGATIVE_PROMPT_LABEL = "Negative prompt:"
# Before a line of a prompt that begins with the label, so that readers do not end the prompt there.
# It is invisible, and not white space that they would strip.
GUARD = "\N{ZERO WIDTH SPACE}"
LINE_TO_GUARD = re.compile(rf"^([^\S\n]*)(?={NEGATIVE_PROMPT_LABEL})", re.MULTILINE)
# What readers take for a LoRA or the like that was used, as in a prompt that was written for them.
TAG_TO_GUARD = re.compile(r"<(?=\w+:[^>]+>)")
QUOTED_CHARACTERS = re.compile(r'[,:\n"]')
HASH_DIGITS = 10
LORA_HASH_DIGITS = 12
RESIZED_BY = "Lanczos"  # if no upscaler does
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class ModelLabel:
    """The names of a model and its LoRAs in the text, and settings that all images share.

    `digest` identifies the model's files, as `id@revision` or `sha256:hash`. `pass_models` has the
    names of the models that passes have of their own.
    """

    model_id: str
    digest: str
    loras: Mapping[str, LoraFacts] = field(default_factory=dict)
    extra_settings: Mapping[str, str] = field(default_factory=dict)
    passes: PassSizes = NO_PASSES
    pass_models: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model's id; of a local folder only the last name, which does not show its path."""
        is_folder = self.digest.startswith("sha256:")
        return PurePath(self.model_id).name if is_folder else self.model_id

    @property
    def hash(self) -> str:
        """The first digits of the revision or of the hash."""
        separator = "@" if "@" in self.digest else ":"
        return self.digest.rpartition(separator)[2][:HASH_DIGITS]


def model_label(plan: Plan) -> ModelLabel:
    """The label of a plan's model, with the shortcuts of its job."""
    shortcuts = shortcuts_label(plan.job.speed)
    return ModelLabel(
        model_id=plan.job.model.id,
        digest=plan.model.digest,
        loras=plan.loras,
        extra_settings={} if shortcuts is None else {"Shortcuts": shortcuts},
        passes=plan.pass_sizes,
        pass_models=dict(_pass_models(plan)),
    )


def _pass_models(plan: Plan) -> Iterator[tuple[str, str]]:
    for name, facts in plan.passes.items():
        settings = plan.job.passes[name]
        reference = settings.model if isinstance(settings, RefinePass) else settings
        if reference is not None:
            yield name, ModelLabel(reference.id, facts.digest).name


def format_parameters(
    parameters: ImageParameters, model: ModelLabel, max_length: int | None = None
) -> str:
    """The text of one image. With `max_length`, in UTF-16 code units, the prompts are truncated."""
    settings = _format_settings(parameters, model)
    tags = []
    for name, weight in lora_weights(parameters.loras).items():
        tags.append(f" <lora:{name}:{format_weight(weight)}>")
    loras = "".join(tags)
    prompt = _guard_prompt(parameters.prompt)
    negative_prompt = _guard_prompt(parameters.negative_prompt)
    if max_length is not None:
        separators = f"\n{NEGATIVE_PROMPT_LABEL} \n"
        rest = settings + loras + separators
        room = max_length - _utf16_length(rest)
        prompt, negative_prompt = _truncate_prompts(prompt, negative_prompt, room)
    lines = [prompt + loras]
    if negative_prompt:
        lines.append(f"{NEGATIVE_PROMPT_LABEL} {negative_prompt}")
    lines.append(settings)
    return "\n".join(lines)


def _lora_hashes(parameters: ImageParameters, model: ModelLabel) -> str | None:
    hashes = {
        name: model.loras[name].tensors[:LORA_HASH_DIGITS]
        for name in lora_weights(parameters.loras)
        if name in model.loras
    }
    return ", ".join(f"{name}: {digits}" for name, digits in hashes.items()) or None


def _format_settings(parameters: ImageParameters, model: ModelLabel) -> str:
    scheduler = SCHEDULERS.get(parameters.sampler)
    guidance = parameters.guidance
    passes = _pass_settings(parameters, model)
    if parameters.strength is not None:  # that of the image that was drawn over first
        passes["Denoising strength"] = str(parameters.strength)
    values = {
        "Steps": str(parameters.steps),
        "Sampler": scheduler.webui_sampler if scheduler else None,
        "Schedule type": scheduler.webui_schedule if scheduler else None,
        "CFG scale": None if guidance is None else str(guidance),
        "Seed": str(parameters.seed),
        "Size": f"{parameters.width}x{parameters.height}",
        "Model hash": model.hash,
        "Model": model.name,
        "Lora hashes": _lora_hashes(parameters, model),
        **model.extra_settings,
        **passes,
        "Version": program_version(),
    }
    present = [(name, value) for name, value in values.items() if value is not None]
    return ", ".join(f"{name}: {_quote(value)}" for name, value in present)


def _pass_settings(parameters: ImageParameters, model: ModelLabel) -> dict[str, str]:
    """The settings that describe passes.

    The first that draws over is the high-resolution fix of web UIs, with the upscaler before it; an
    upscaler alone is their postprocessing. `Passes` and `Final size` are for people.
    """
    if not model.passes.alters_images:
        return {}
    drawn = (parameters.width, parameters.height)
    width, height = model.passes.final(drawn)
    upscaler = RESIZED_BY
    hires_fix: dict[str, str] = {}
    names = []
    sizes = model.passes.sizes_by_pass(drawn)
    for (name, settings), size in zip(model.passes.passes.items(), sizes, strict=True):
        if not alters_pixels(settings):
            continue
        own_model = model.pass_models.get(name, "")
        kind = f"{settings.kind} {own_model}"
        names.append(f"{name} ({kind.rstrip()})")
        if isinstance(settings, UpscalePass):
            upscaler = own_model
        elif isinstance(settings, RefinePass) and not hires_fix:
            hires_fix = {
                "Denoising strength": f"{settings.strength:g}",
                "Hires steps": str(settings.steps or parameters.steps),
                "Hires upscaler": upscaler,
                **_hires_size(drawn, size),
            }
    postprocessing = {
        "Postprocess upscale by": f"{width / drawn[0]:g}",
        "Postprocess upscaler": upscaler,
    }
    return {
        **(hires_fix or postprocessing),
        "Passes": "; ".join(names),
        "Final size": f"{width}x{height}",
    }


def _hires_size(drawn: Size, size: Size) -> dict[str, str]:
    factor = size[0] / drawn[0]
    if size[1] == factor * drawn[1]:
        return {"Hires upscale": f"{factor:g}"}
    return {"Hires resize": f"{size[0]}x{size[1]}"}


def _quote(value: str) -> str:
    if not QUOTED_CHARACTERS.search(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _guard_prompt(prompt: str) -> str:
    """A prompt that reads back as itself."""
    # NUL ends a text in PNG, and a lone surrogate cannot be encoded.
    text = prompt.replace("\0", "\N{REPLACEMENT CHARACTER}")
    encodable = text.encode(errors="replace").decode()
    without_tags = TAG_TO_GUARD.sub(f"<{GUARD}", encodable)
    return LINE_TO_GUARD.sub(rf"\1{GUARD}", without_tags)


def _truncate_prompts(prompt: str, negative_prompt: str, room: int) -> tuple[str, str]:
    """Both prompts in so much room: each has half of it, and what the other leaves."""
    negative_room = max(room // 2, room - _utf16_length(prompt))
    negative_prompt = _truncate(negative_prompt, negative_room)
    prompt = _truncate(prompt, room - _utf16_length(negative_prompt))
    return prompt, negative_prompt


def _truncate(text: str, max_length: int) -> str:
    content = text.encode("utf-16-be")
    if len(content) <= 2 * max_length:
        return text
    end = 2 * (max_length - 1)
    start = content[:end].decode("utf-16-be", "ignore")
    return start + ELLIPSIS


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-be")) // 2
