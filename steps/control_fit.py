"""Whether a ControlNet is one for a model, by what the configurations of both say."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

ModelConfig = Mapping[str, object]
ConfigKeys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ControlNetKind:
    """A class of ControlNets, and the part of a model that it works beside.

    Both must have the product of `equal` keys, which are said in words. What sets one of `unlike` needs more than a
    picture to draw by.
    """

    denoiser: str
    equal_dimensions: Mapping[ConfigKeys, str]
    unsupported_keys: Mapping[str, str] = field(default_factory=dict)


_TRANSFORMER_DIMENSIONS: Mapping[ConfigKeys, str] = {
    ("joint_attention_dim",): "reads texts of {} channels",
    ("pooled_projection_dim",): "reads pooled texts of {} channels",
    ("in_channels",): "reads latents of {} channels",
    ("num_attention_heads", "attention_head_dim"): "has layers of {} channels",
}
CONTROLNET_KINDS: Mapping[str, ControlNetKind] = {
    "ControlNetModel": ControlNetKind("unet", {("cross_attention_dim",): "reads texts of {} channels"}),
    "FluxControlNetModel": ControlNetKind(
        "transformer", _TRANSFORMER_DIMENSIONS, {"num_mode": "is a union, which asks for a mode"}
    ),
    "SD3ControlNetModel": ControlNetKind(
        "transformer",
        {**_TRANSFORMER_DIMENSIONS, ("patch_size",): "reads patches of side {}"},
        {"extra_conditioning_channels": "reads a mask beside its picture"},
    ),
}


def controlnet_mismatch(kind: str, control: ModelConfig, denoiser: ModelConfig) -> str | None:
    """Why a ControlNet of this class is none for a denoiser, as the end of a sentence about it; None where it fits.

    What one of them does not say is not compared: SD3.5's own ControlNets read no texts.
    """
    known = CONTROLNET_KINDS[kind]
    for key, said in known.unsupported_keys.items():
        if control.get(key):
            return said
    for keys, said in known.equal_dimensions.items():
        ours, theirs = _dimension(control, keys), _dimension(denoiser, keys)
        if ours is not None and theirs is not None and ours != theirs:
            return f"{said.format(ours)}, and the model has {theirs}"
    return None


def _dimension(config: ModelConfig, keys: ConfigKeys) -> int | None:
    values = [config.get(key) for key in keys]
    numbers = [value for value in values if isinstance(value, int)]
    return math.prod(numbers) if len(numbers) == len(values) else None
