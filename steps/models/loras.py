"""LoRAs of an image as text: `style:0.8, detail:0.5`, and the canonical form of such text.

The canonical text is the same for equal sets: it names each LoRA once, sorted by name, with the
shortest digits that give its weight, and omits LoRAs of weight zero. The part of it that decides
pixels is its key: the digests of files in place of names.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.job.adapters import ADAPTER_NAME_PATTERN

MAX_LORA_WEIGHT = 10.0
MAX_LORAS = 8  # at once: every one is more work for each layer
MAX_LORA_CHARS = 1000
WEIGHT_PATTERN = r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
LORA_PATTERN = re.compile(rf"\s*({ADAPTER_NAME_PATTERN})\s*(?::\s*({WEIGHT_PATTERN})\s*)?")
LoraRejectionReason = Literal["syntax", "unknown", "twice", "weight", "many"]
LORA_REJECTION_TEXTS: Mapping[LoraRejectionReason, str] = {
    "syntax": "is not written as name:weight, name:weight",
    "unknown": "names a LoRA that is not in model.loras",
    "twice": "names a LoRA twice",
    "weight": f"has a weight that is not between -{MAX_LORA_WEIGHT:g} and {MAX_LORA_WEIGHT:g}",
    "many": f"names more than {MAX_LORAS} LoRAs",
}


@dataclass(frozen=True, slots=True)
class ParsedLoras:
    """A parsed text: its canonical form, which is None for no LoRA, or why it is rejected."""

    canonical: str | None = None
    rejection: LoraRejectionReason | None = None


def parse_loras(text: str, names: Collection[str]) -> ParsedLoras:
    """Parse a person's text about the LoRAs of these names."""
    if len(text) > MAX_LORA_CHARS:
        return ParsedLoras(rejection="many")
    if not text.strip():
        return ParsedLoras()
    weights: dict[str, float] = {}
    for item in text.split(","):
        match = LORA_PATTERN.fullmatch(item)
        if match is None:
            return ParsedLoras(rejection="syntax")
        name = match[1]
        weight = float(match[2] or 1)
        if reason := _rejection_reason(name, weight, weights, names):
            return ParsedLoras(rejection=reason)
        weights[name] = weight
    if len(weights) > MAX_LORAS:
        return ParsedLoras(rejection="many")
    return ParsedLoras(format_loras(weights))


def _rejection_reason(
    name: str, weight: float, earlier: Collection[str], names: Collection[str]
) -> LoraRejectionReason | None:
    if name not in names:
        return "unknown"
    if name in earlier:
        return "twice"
    return None if abs(weight) <= MAX_LORA_WEIGHT else "weight"


def format_loras(weights: Mapping[str, float]) -> str | None:
    """The canonical text of these weights; None if all are zero."""
    items = [
        f"{name}:{format_weight(weight)}" for name, weight in sorted(weights.items()) if weight
    ]
    return ",".join(items) or None


def lora_weights(loras: str | None) -> dict[str, float]:
    """The weight of each LoRA in a canonical text."""
    if not loras:
        return {}
    items = (item.rpartition(":") for item in loras.split(","))
    return {name: float(weight) for name, _, weight in items}


def lora_key(loras: str, digests: Mapping[str, str]) -> str:
    """The part of a canonical text that decides pixels: each file's digest and weight."""
    weights = lora_weights(loras)
    return ",".join(sorted(f"{digests[name]}:{format_weight(weights[name])}" for name in weights))


def format_weight(weight: float) -> str:
    """The shortest digits that give this weight."""
    return repr(weight).removesuffix(".0")
