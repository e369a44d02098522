"""What made an image, as the text `parameters` that Stable Diffusion web UIs write and read back.

Readers take the last line for settings, a line that begins with `Negative prompt:` for the end of the prompt, and
drop white space around lines. What is quoted there is JSON. LoRAs stand in the prompt as <lora:name:weight>, and by
the hashes of their tensors in the settings.
"""

import json
import re
from collections.abc import Mapping
from pathlib import PurePath

from imagekiln.steps.imaging.metadata import program_version
from imagekiln.steps.job.samplers import SCHEDULERS
from imagekiln.steps.models.compatibility import shortcuts_label
from imagekiln.steps.models.lora_files import LoraFacts
from imagekiln.steps.models.loras import format_weight, lora_weights
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.plan import Plan

NEGATIVE_PROMPT_LABEL = "Negative prompt:"
# Without it, such a line of a prompt would be taken for the negative prompt. It is seen by none and stripped by none.
GUARD = "\N{ZERO WIDTH SPACE}"
LINE_TO_GUARD = re.compile(rf"^([^\S\n]*)(?={NEGATIVE_PROMPT_LABEL})", re.MULTILINE)
HASH_DIGITS, LORA_HASH_DIGITS = 10, 12
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


class ModelLabel:
    """What the text says of the model, and of the program."""

    def __init__(
        self,
        name: str,
        digest: str,
        loras: Mapping[str, LoraFacts] | None = None,
        further: Mapping[str, str] | None = None,
    ) -> None:
        """Take the model's id and what identifies its files, its LoRAs, and further settings that all images share.

        Of a local folder, only the last name is told.
        """
        self.loras = loras or {}
        kind, _, digits = digest.rpartition("@" if "@" in digest else ":")
        self.name = PurePath(name).name if kind == "sha256" else name
        self.hash = digits[:HASH_DIGITS]
        self.extra_settings = dict(further or {})


def model_label(plan: Plan) -> ModelLabel:
    """What the text says of a plan's model, and the shortcuts taken."""
    job, further = plan.job, dict[str, str]()
    if named := shortcuts_label(job.speed):
        further["Shortcuts"] = named
    return ModelLabel(job.model.id, plan.model.digest, plan.loras, further)


def format_parameters(pixels: ImageParameters, model: ModelLabel, most: int | None = None) -> str:
    """The whole text. With `most`, the prompts are cut so that it is no longer in units of UTF-16."""
    settings, networks = _format_settings(pixels, model), _lora_tags(pixels)
    prompt, negative = _guard_prompt(pixels.prompt), _guard_prompt(pixels.negative_prompt)
    if most is not None:
        room = (
            most
            - _utf16_length(settings)
            - _utf16_length(networks)
            - len(NEGATIVE_PROMPT_LABEL)
            - 3
        )  # two ends of line and a space
        kept = _truncate(negative, max(room // 2, room - _utf16_length(prompt)))
        prompt, negative = _truncate(prompt, room - _utf16_length(kept)), kept
    return "\n".join(
        [
            prompt + networks,
            *([f"{NEGATIVE_PROMPT_LABEL} {negative}"] if negative else []),
            settings,
        ]
    )


def _lora_tags(pixels: ImageParameters) -> str:
    return "".join(
        f" <lora:{name}:{format_weight(weight)}>"
        for name, weight in lora_weights(pixels.loras).items()
    )


def _lora_hashes(pixels: ImageParameters, model: ModelLabel) -> str | None:
    named = [name for name in lora_weights(pixels.loras) if name in model.loras]
    return (
        ", ".join(f"{name}: {model.loras[name].tensors[:LORA_HASH_DIGITS]}" for name in named)
        or None
    )


def _format_settings(pixels: ImageParameters, model: ModelLabel) -> str:
    scheduler = SCHEDULERS.get(pixels.sampler)
    values = {
        "Steps": str(pixels.steps),
        "Sampler": scheduler.webui_sampler if scheduler else None,
        "Schedule type": scheduler.webui_schedule if scheduler else None,
        "CFG scale": str(pixels.guidance),
        "Seed": str(pixels.seed),
        "Size": f"{pixels.width}x{pixels.height}",
        "Denoising strength": None if pixels.strength is None else str(pixels.strength),
        "Model hash": model.hash,
        "Model": model.name,
        "Lora hashes": _lora_hashes(pixels, model),
        **model.extra_settings,
        "Version": program_version(),
    }
    return ", ".join(
        f"{name}: {_quote(value)}" for name, value in values.items() if value is not None
    )


def _quote(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if re.search(r'[,:\n"]', value) else value


def _guard_prompt(prompt: str) -> str:
    """A prompt that reads back as itself. NUL ends texts in PNG, and lone surrogates are in no text at all."""
    text = prompt.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return LINE_TO_GUARD.sub(rf"\1{GUARD}", text)


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-be")) // 2


def _truncate(text: str, most: int) -> str:
    whole = text.encode("utf-16-be")
    return (
        text
        if len(whole) <= 2 * most
        else whole[: 2 * (most - 1)].decode("utf-16-be", "ignore") + ELLIPSIS
    )
