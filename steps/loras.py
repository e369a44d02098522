"""Which LoRAs draw an image, as text: `style:0.8, detail:0.5`, and its canonical form, which is one for equal sets.

The canonical text names each LoRA once, in the order of names, with the shortest digits that give its weight and
without those that weigh nothing. What of it decides pixels is its key: the digests of files in place of names.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from imagekiln.steps.adapters import NAME

LARGEST_WEIGHT = 10.0
MOST_LORAS = 8  # at once: each one is more work for every layer
MOST_CHARS = 1000
NUMBER = r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
WRITTEN = re.compile(rf"\s*({NAME})\s*(?::\s*({NUMBER})\s*)?")

Fault = Literal["syntax", "unknown", "twice", "weight", "many"]
REASONS: Mapping[Fault, str] = {
    "syntax": "is not written as name:weight, name:weight",
    "unknown": "names a LoRA that is not in model.loras",
    "twice": "names a LoRA twice",
    "weight": f"has a weight that is not between -{LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}",
    "many": f"names more than {MOST_LORAS} LoRAs",
}


@dataclass(frozen=True, slots=True)
class Read:
    """What a text says: its canonical form, which is None for no LoRA, or the fault for which it is refused."""

    loras: str | None = None
    fault: Fault | None = None


def read(text: str, known: Collection[str]) -> Read:
    """Read a person's text about LoRAs of these names."""
    found: dict[str, float] = {}
    if len(text) > MOST_CHARS:
        return Read(fault="many")
    for each in text.split(",") if text.strip() else ():
        written = WRITTEN.fullmatch(each)
        if written is None:
            return Read(fault="syntax")
        name, weight = written[1], float(written[2] or 1)
        if fault := _fault(name, weight, found, known):
            return Read(fault=fault)
        found[name] = weight
    return Read(canonical(found)) if len(found) <= MOST_LORAS else Read(fault="many")


def _fault(name: str, weight: float, found: Collection[str], known: Collection[str]) -> Fault | None:
    if name not in known:
        return "unknown"
    if name in found:
        return "twice"
    return None if abs(weight) <= LARGEST_WEIGHT else "weight"


def canonical(weights: Mapping[str, float]) -> str | None:
    """The canonical text of these weights; None where all are zero."""
    return ",".join(f"{name}:{digits(weight)}" for name, weight in sorted(weights.items()) if weight) or None


def weights(loras: str | None) -> dict[str, float]:
    """The weight of each LoRA in a canonical text."""
    pairs = (each.rpartition(":") for each in loras.split(",")) if loras else ()
    return {name: float(weight) for name, _, weight in pairs}


def key(loras: str, digests: Mapping[str, str]) -> str:
    """What of a canonical text decides pixels: each file's digest and its weight, whatever the files are called."""
    return ",".join(sorted(f"{digests[name]}:{digits(weight)}" for name, weight in weights(loras).items()))


def digits(weight: float) -> str:
    """The shortest digits that give this weight."""
    return repr(weight).removesuffix(".0")
