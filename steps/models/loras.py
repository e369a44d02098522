"""Which LoRAs draw an image, as text: `style:0.8, detail:0.5`, and its canonical form, which is one for equal sets.

The canonical text names each LoRA once, in the order of names, with the shortest digits that give its weight and
without those that weigh nothing. What of it decides pixels is its key: the digests of files in place of names.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.job.adapters import ADAPTER_NAME_PATTERN

MAX_LORA_WEIGHT = 10.0
MAX_LORAS = 8  # at once: each one is more work for every layer
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
    """What a text says: its canonical form, which is None for no LoRA, or the fault for which it is refused."""

    canonical: str | None = None
    rejection: LoraRejectionReason | None = None


def parse_loras(text: str, known: Collection[str]) -> ParsedLoras:
    """Read a person's text about LoRAs of these names."""
    found: dict[str, float] = {}
    if len(text) > MAX_LORA_CHARS:
        return ParsedLoras(rejection="many")
    for each in text.split(",") if text.strip() else ():
        written = LORA_PATTERN.fullmatch(each)
        if written is None:
            return ParsedLoras(rejection="syntax")
        name, weight = written[1], float(written[2] or 1)
        if fault := _rejection_reason(name, weight, found, known):
            return ParsedLoras(rejection=fault)
        found[name] = weight
    return (
        ParsedLoras(format_loras(found))
        if len(found) <= MAX_LORAS
        else ParsedLoras(rejection="many")
    )


def _rejection_reason(
    name: str, weight: float, found: Collection[str], known: Collection[str]
) -> LoraRejectionReason | None:
    if name not in known:
        return "unknown"
    if name in found:
        return "twice"
    return None if abs(weight) <= MAX_LORA_WEIGHT else "weight"


def format_loras(weights: Mapping[str, float]) -> str | None:
    """The canonical text of these weights; None where all are zero."""
    return (
        ",".join(
            f"{name}:{format_weight(weight)}" for name, weight in sorted(weights.items()) if weight
        )
        or None
    )


def lora_weights(loras: str | None) -> dict[str, float]:
    """The weight of each LoRA in a canonical text."""
    pairs = (each.rpartition(":") for each in loras.split(",")) if loras else ()
    return {name: float(weight) for name, _, weight in pairs}


def lora_key(loras: str, digests: Mapping[str, str]) -> str:
    """What of a canonical text decides pixels: each file's digest and its weight, whatever the files are called."""
    return ",".join(
        sorted(
            f"{digests[name]}:{format_weight(weight)}"
            for name, weight in lora_weights(loras).items()
        )
    )


def format_weight(weight: float) -> str:
    """The shortest digits that give this weight."""
    return repr(weight).removesuffix(".0")
