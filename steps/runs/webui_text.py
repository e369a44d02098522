"""The `parameters` string that Stable Diffusion web UIs write into images and read back.

Readers take the last line as the settings, take a line that begins with `Negative prompt:` as the
end of the prompt, and strip white space around lines. Quoted values are JSON. LoRAs appear in the
prompt as <lora:name:weight>, and in the settings by the hashes of their tensors. `Size` is the size
at generation, which determines the noise together with the seed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from imagekiln.steps.imaging.metadata import program_version
from imagekiln.steps.job.columns import SCHEDULERS
from imagekiln.steps.job.passes import RefinePass, UpscalePass, alters_pixels
from imagekiln.steps.models.loras import LoraFacts, format_weight, lora_weights
from imagekiln.steps.models.passes import NO_PASSES, PassSizes, Size
from imagekiln.steps.models.resolve import shortcuts_label
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.plan import Plan

NEGATIVE_PROMPT_LABEL = "Negative prompt:"
# Inserted before a prompt line that begins with the label, so that readers do not end the prompt
# there. It is invisible, and is not stripped as white space.
GUARD = "\N{ZERO WIDTH SPACE}"
LINE_TO_GUARD = re.compile(rf"^([^\S\n]*)(?={NEGATIVE_PROMPT_LABEL})", re.MULTILINE)
# Parsed by readers as a LoRA or similar network, even in a prompt that only mentions it.
TAG_TO_GUARD = re.compile(r"<(?=\w+:[^>]+>)")
QUOTED_CHARACTERS = re.compile(r'[,:\n"]')
HASH_DIGITS = 10
LORA_HASH_DIGITS = 12
RESIZED_BY = "Lanczos"  # if no upscaler does
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class ModelLabel:
    """Names of a model and its LoRAs in the parameters, and settings shared by all images.

    `digest` identifies the model's files, as `id@revision` or `sha256:hash`.
    """

    model_id: str
    digest: str
    loras: Mapping[str, LoraFacts] = field(default_factory=dict)
    shortcuts: str | None = None
    passes: PassSizes = NO_PASSES

    @property
    def name(self) -> str:
        """The model's id; only the last name of a local folder, which does not reveal its path."""
        is_folder = self.digest.startswith("sha256:")
        return PurePath(self.model_id).name if is_folder else self.model_id

    @property
    def hash(self) -> str:
        """First digits of the revision or of the hash."""
        separator = "@" if "@" in self.digest else ":"
        return self.digest.rpartition(separator)[2][:HASH_DIGITS]


def model_label(plan: Plan) -> ModelLabel:
    """Build the label of a plan's model, with the model shortcuts of its job."""
    return ModelLabel(
        model_id=plan.job.model.id,
        digest=plan.model.digest,
        loras=plan.loras,
        shortcuts=shortcuts_label(plan.job.speed),
        passes=plan.pass_sizes,
    )


def format_parameters(
    parameters: ImageParameters, model: ModelLabel, max_length: int | None = None
) -> str:
    """Format one image's parameters. With `max_length`, in UTF-16 units, prompts are truncated."""
    settings = _format_settings(parameters, model)
    loras = ""
    for name, weight in lora_weights(parameters.loras).items():
        loras += f" <lora:{name}:{format_weight(weight)}>"
    prompt = _guard_prompt(parameters.prompt)
    negative_prompt = _guard_prompt(parameters.negative_prompt)
    if max_length is not None:
        rest = f"{loras}\n{NEGATIVE_PROMPT_LABEL} \n{settings}".encode("utf-16-be")
        prompts = 2 if negative_prompt else 1
        room = (max_length - len(rest) // 2) // prompts
        prompt = _truncate(prompt, room)
        negative_prompt = _truncate(negative_prompt, room)
    lines = [prompt + loras]
    if negative_prompt:
        lines.append(f"{NEGATIVE_PROMPT_LABEL} {negative_prompt}")
    return "\n".join([*lines, settings])


def _format_settings(parameters: ImageParameters, model: ModelLabel) -> str:
    scheduler = SCHEDULERS.get(parameters.sampler)
    hashes = [
        f"{name}: {model.loras[name].tensors[:LORA_HASH_DIGITS]}"
        for name in lora_weights(parameters.loras)
        if name in model.loras
    ]
    values: dict[str, object] = {
        "Steps": parameters.steps,
        "Sampler": scheduler and scheduler.webui_sampler,
        "Schedule type": scheduler and scheduler.webui_schedule,
        "CFG scale": parameters.guidance,
        "Seed": parameters.seed,
        "Size": f"{parameters.width}x{parameters.height}",
        "Model hash": model.hash,
        "Model": model.name,
        "Lora hashes": ", ".join(hashes) or None,
        "Shortcuts": model.shortcuts,
        **_pass_settings(parameters, model.passes),
    }
    if parameters.strength is not None:  # of the generation itself, before any pass
        values["Denoising strength"] = parameters.strength
    values["Version"] = program_version()
    present = [(name, str(value)) for name, value in values.items() if value is not None]
    return ", ".join(f"{name}: {_quote(value)}" for name, value in present)


def _pass_settings(parameters: ImageParameters, passes: PassSizes) -> dict[str, object]:
    """Return the settings that describe passes.

    The first image-to-image pass is the high-resolution fix of web UIs, together with the upscaler
    before it. An upscaler alone is their postprocessing. `Passes` and `Final size` are informative
    only.
    """
    drawn = (parameters.width, parameters.height)
    sizes = passes.sizes_by_pass(drawn)
    width, height = passes.final(drawn)
    upscaler = RESIZED_BY
    hires_fix: dict[str, object] = {}
    names = []
    for (name, settings), size in zip(passes.passes.items(), sizes, strict=True):
        if not alters_pixels(settings):
            continue
        model = _pass_model(name, passes)
        names.append(f"{name} ({settings.kind} {model})".replace(" )", ")"))
        if isinstance(settings, UpscalePass):
            upscaler = model
        elif settings.kind == "refine" and not hires_fix:
            hires_fix = {
                "Denoising strength": f"{settings.strength:g}",
                "Hires steps": settings.steps or parameters.steps,
                "Hires upscaler": upscaler,
                **_hires_size(drawn, size),
            }
    if not names:
        return {}
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


def _pass_model(name: str, passes: PassSizes) -> str:
    """Return the name of the pass's own model; empty if it has none."""
    settings = passes.passes[name]
    reference = settings.model if isinstance(settings, RefinePass) else settings
    if reference is None:
        return ""
    return ModelLabel(reference.id, passes.facts[name].digest).name


def _quote(value: str) -> str:
    if not QUOTED_CHARACTERS.search(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _guard_prompt(prompt: str) -> str:
    """Escape a prompt so that it is read back unchanged."""
    # NUL ends a string in PNG, and a lone surrogate cannot be encoded.
    text = prompt.replace("\0", "\N{REPLACEMENT CHARACTER}")
    encodable = text.encode(errors="replace").decode()
    without_tags = TAG_TO_GUARD.sub(f"<{GUARD}", encodable)
    return LINE_TO_GUARD.sub(rf"\1{GUARD}", without_tags)


def _truncate(value: str, max_length: int) -> str:
    content = value.encode("utf-16-be")
    if len(content) <= 2 * max_length:
        return value
    end = 2 * (max_length - 1)
    return content[:end].decode("utf-16-be", "ignore") + ELLIPSIS
