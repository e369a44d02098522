"""The denoiser in 8 bits: torchao's dynamic float8, scaled by row of weights and by token.

Source: https://docs.pytorch.org/ao/stable/. Because each token has a scale of its own, no image
depends on its neighbors.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec

import diffusers
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import describe_device

MIN_CAPABILITY = (8, 9)  # NVIDIA's Ada; Hopper is 9.0
SIDE_MULTIPLE = 16  # both sides of a product in float8 must be multiples of this
# The repeated blocks, by any family's name for them. The first and last projections lie outside.
BLOCK_PATTERN = re.compile(r"(blocks|^layers|^noise_refiner|^context_refiner)\.\d")
# Modulation layers see one row an image: too little to gain.
MODULATION_PATTERN = re.compile(r"norm|_mod\.|modulation|time_emb")
# SDXL's empty negative prompt is all zeros; divided by a scale of 0 it would not be finite.
ACTIVATION_LOWER_BOUND = 1e-12


def require_fp8_support(device: torch.device) -> None:
    """Raise BadInput where this installation or this device cannot compute in float8."""
    if find_spec("torchao") is None:
        raise BadInput(
            "speed.quantization is fp8, which needs an extra. "
            "Type: pip install 'imagekiln[fp8]', or write none."
        )
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        major, minor = MIN_CAPABILITY
        raise BadInput(
            f"speed.quantization is fp8, which takes a GPU of compute capability {major}.{minor} "
            f"or more, and this is {describe_device(device)}. Run it on such a GPU, or write none."
        )


def quantize_to_fp8(denoiser: diffusers.ModelMixin) -> None:
    """Convert the linear layers of the repeated blocks to float8, in place.

    Nothing may be compiled before. Raises BadInput where there are no such layers.
    """
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
    from torchao.quantization.quantize_.common import KernelPreference

    layers = set(quantizable_layers(denoiser))
    if not layers:
        raise BadInput(
            "speed.quantization is fp8, and the denoiser has no layer that float8 can hold. "
            "Write none."
        )
    config = Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow(),
        activation_value_lb=ACTIVATION_LOWER_BOUND,
        kernel_preference=KernelPreference.TORCH,  # the same kernels whatever else is installed
        set_inductor_config=False,
    )
    quantize_(denoiser, config, filter_fn=lambda _, name: name in layers)


def quantizable_layers(denoiser: diffusers.ModelMixin) -> Iterator[str]:
    """The names of the layers that are worth converting."""
    for name, module in denoiser.named_modules():
        is_repeated = BLOCK_PATTERN.search(name) and not MODULATION_PATTERN.search(name)
        if is_repeated and isinstance(module, torch.nn.Linear) and _is_quantizable(module.weight):
            yield name


def _is_quantizable(weight: torch.Tensor) -> bool:
    if any(side % SIDE_MULTIPLE for side in weight.shape):
        return False
    return bool(weight.any(dim=1).all())  # each row needs a scale other than 0
