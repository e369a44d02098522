"""Quantize a denoiser's layers to 8 or 4 bits as it is loaded."""

from collections.abc import Iterator
from importlib.util import find_spec

import diffusers
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.compile import blocks_of
from imagekiln.steps.generate.diffusion.device import describe_device
from imagekiln.steps.models.placement import MODULATION_PATTERN, SIDE_MULTIPLE

# By speed.quantization: Ada, as Hopper is 9.0, and Blackwell.
MIN_CAPABILITIES = {"fp8": (8, 9), "nvfp4": (10, 0)}
# SDXL's empty negative prompt is all zeros. Divided by a scale of 0, it would not be finite.
ACTIVATION_LOWER_BOUND = 1e-12


def require_quantization_support(device: torch.device, method: str) -> None:
    """Raise BadInput if this installation or device cannot compute in a job's quantization."""
    if find_spec("torchao") is None:
        raise BadInput(
            f"speed.quantization is {method}, which needs an extra. "
            "Type: pip install 'imagekiln[fp8]', or write none."
        )
    minimum = MIN_CAPABILITIES[method]
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < minimum:
        major, minor = minimum
        raise BadInput(
            f"speed.quantization is {method}, which takes a GPU of compute capability "
            f"{major}.{minor} or more, and this is {describe_device(device)}. Run it on such a "
            "GPU, or write none."
        )


def quantize_denoiser(
    denoiser: diffusers.ModelMixin,
    method: str,
    device: torch.device | None = None,
    home: torch.device | None = None,
) -> None:
    """Quantize the linear layers of the repeated blocks to fp8 or nvfp4, before it is compiled.

    Each layer is quantized on `device` and moved to `home`, so one at a time has 16 bits there.
    Activations are scaled by token, or by 16 numbers of it, so no image depends on its neighbors.
    """
    from torchao.quantization import quantize_

    layers = [denoiser.get_submodule(name) for name in quantizable_layers(denoiser)]
    if not layers:
        raise BadInput(
            f"speed.quantization is {method}, and the denoiser has no layer that it can hold. "
            "Write none."
        )
    config = _fp8_config() if method == "fp8" else _nvfp4_config()
    for layer in layers:
        quantize_(layer.to(device), config, filter_fn=lambda *_: True)
        if method == "nvfp4":
            # Otherwise the largest number of a batch would scale all of its images.
            layer.weight.act_quant_kwargs.use_dynamic_per_tensor_scale = False
            layer.register_forward_pre_hook(_make_contiguous)
        layer.to(home)


def _make_contiguous(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> object:
    """Copy slices and transposed tensors, which torchao's NVFP4 does not take."""
    return tuple(each.contiguous() for each in inputs)


def _fp8_config() -> object:
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow
    from torchao.quantization.quantize_.common import KernelPreference

    return Float8DynamicActivationFloat8WeightConfig(
        granularity=PerRow(),
        activation_value_lb=ACTIVATION_LOWER_BOUND,
        kernel_preference=KernelPreference.TORCH,  # the same kernels in every installation
        set_inductor_config=False,
    )


def _nvfp4_config() -> object:
    from torchao.prototype.mx_formats import NVFP4DynamicActivationNVFP4WeightConfig

    # Its Triton kernel is in another package.
    return NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False)


def quantizable_layers(denoiser: diffusers.ModelMixin) -> Iterator[str]:
    """Yield the names of the layers that are worth quantizing.

    The first and last projections lie outside the repeated blocks.
    """
    repeated = {module for block in blocks_of(denoiser) for module in block.modules()}
    for name, module in denoiser.named_modules():
        if module not in repeated or not isinstance(module, torch.nn.Linear):
            continue
        if not MODULATION_PATTERN.search(name) and _is_quantizable(module.weight):
            yield name


def _is_quantizable(weight: torch.Tensor) -> bool:
    if any(side % SIDE_MULTIPLE for side in weight.shape):
        return False
    return bool(weight.any(dim=1).all())  # each row needs a scale other than 0
