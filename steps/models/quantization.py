"""Quantized weights: which are loaded, and by which package, as their configuration says."""

from collections.abc import Mapping
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput, cut_name

Config = Mapping[str, object]
QUANTIZATION_CONFIG = "quantization_config"


@dataclass(frozen=True, slots=True)
class Quantizer:
    """A package that loads quantized weights from safetensors.

    `install` is the argument of `pip install`. `needs_gpu`: diffusers loads its own networks with
    it only on a GPU.
    """

    package: str
    install: str
    needs_gpu: bool = False


QUANTIZERS: Mapping[str, Quantizer] = {
    "bitsandbytes": Quantizer("bitsandbytes", "bitsandbytes", needs_gpu=True),
    "sdnq": Quantizer("sdnq", "sdnq"),
    "torchao": Quantizer("torchao", "'imagekiln[fp8]'"),
}
GGUF = Quantizer("gguf", "'imagekiln[gguf]'")
REFUSAL_REASONS = {
    **dict.fromkeys(("fp8", "mxfp4", "mxfp8", "nunchaku_lite"), "its kernels are code on a hub"),
    "modelopt": "its state is a pickle",
}


def quantization_method(config: Config) -> str | None:
    """Return the method by which a network is quantized, as its configuration says."""
    settings = config.get(QUANTIZATION_CONFIG)
    if not isinstance(settings, dict) or not settings:
        return None
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    return str(settings.get("quant_method") or settings.get("quant_algo"))


def quantized_error(subject: str, method: str) -> BadInput:
    """Build the error for quantized weights. `method` is the method, or a sign of it."""
    reason = REFUSAL_REASONS.get(method)
    described = cut_name(method)
    if reason is not None:
        described += f": {reason}"
    loaded = ", ".join(QUANTIZERS)
    return BadInput(
        f"{subject}: is quantized ({described}), and Imagekiln loads weights of "
        f"{loaded} and GGUF, besides float32, float16 and bfloat16. "
        "Choose such a model, or the one before quantization; speed.quantization makes it fp8."
    )
