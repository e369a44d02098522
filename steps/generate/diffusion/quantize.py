"""The denoiser in 8 bits: torchao's dynamic float8, a scale for each row of weights and for each token.

Source: https://docs.pytorch.org/ao/stable/. As each token has a scale of its own, no image depends on its neighbours.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec

import diffusers
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import describe_device

MIN_CAPABILITY = (8, 9)  # NVIDIA's Ada; Hopper is 9.0
SIDE_MULTIPLE = 16  # what both sides of a product in float8 must be multiples of
# What repeats, by any family's name for it. The first and the last projection lie outside.
BLOCK_PATTERN = re.compile(r"(blocks|^layers|^noise_refiner|^context_refiner)\.\d")
ACTIVATION_LOWER_BOUND = 1e-12  # an empty negative prompt is all zeros in SDXL, and by a scale of 0 its numbers would not be finite
MODULATION_PATTERN = re.compile(
    r"norm|_mod\.|modulation|time_emb"
)  # of one row an image: too small to gain


def require_fp8_support(device: torch.device) -> None:
    """Raise BadInput where this installation or this device cannot compute in float8."""
    if find_spec("torchao") is None:
        raise BadInput(
            "speed.quantization is fp8, which needs an extra. Install imagekiln[fp8], or write none."
        )
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        raise BadInput(
            f"speed.quantization is fp8, which a GPU of compute capability {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} or more "
            f"computes, and this is {describe_device(device)}. Run it on such a GPU, or write none."
        )


def quantize_to_fp8(denoiser: diffusers.ModelMixin) -> None:
    """Change the linear layers of the repeated blocks to float8, in place: before anything is compiled.

    Raises BadInput where there is none.
    """
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
    from torchao.quantization.quantize_.common import KernelPreference

    wanted = set(quantizable_layers(denoiser))
    if not wanted:
        raise BadInput(
            "speed.quantization is fp8, and the denoiser has no layer that float8 can hold. Write none."
        )
    config = Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow(),
        activation_value_lb=ACTIVATION_LOWER_BOUND,
        kernel_preference=KernelPreference.TORCH,  # the same kernels whatever else is installed
        set_inductor_config=False,
    )
    quantize_(denoiser, config, filter_fn=lambda _, name: name in wanted)


def quantizable_layers(denoiser: diffusers.ModelMixin) -> Iterator[str]:
    """The names of the layers that are worth it."""
    for name, module in denoiser.named_modules():
        repeated = bool(BLOCK_PATTERN.search(name)) and not MODULATION_PATTERN.search(name)
        if repeated and isinstance(module, torch.nn.Linear) and _is_quantizable(module.weight):
            yield name


def _is_quantizable(weight: torch.Tensor) -> bool:
    return not any(side % SIDE_MULTIPLE for side in weight.shape) and bool(
        weight.any(dim=1).all()
    )  # a scale for each row
