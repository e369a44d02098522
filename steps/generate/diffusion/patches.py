"""Uses of private APIs of torch, diffusers and peft, and methods that are replaced.

Each function names its reason and upstream source. test_patches.py fails when one of them changes.
Versions: torch 2.15, diffusers 0.42, peft 0.21.
"""

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, TypeAlias, cast
from weakref import WeakValueDictionary

import diffusers
import torch
import torch._dynamo.config
from diffusers.loaders import SD3IPAdapterMixin, single_file_model, single_file_utils
from diffusers.utils.torch_utils import randn_tensor
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch._dynamo.callback import callback_handler

Untyped: TypeAlias = Any  # diffusers has no types
AnyFunction = Callable[..., Any]


# --- Replacing a method of one object -------------------------------------------------------------


@contextmanager
def replaced_method(owner: object, name: str, function: Untyped) -> Iterator[None]:
    """Replace a method or value of an object while the block runs.

    Writes into `__dict__`, since `torch.nn.Module.__setattr__` is slow and wrappers forward
    attributes. A forward hook would become a part of compiled code (`torch.nn.Module._call_impl`).
    """
    attributes = vars(owner)
    own = {name: attributes[name]} if name in attributes else {}
    attributes[name] = function
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(own)


# --- Compiling ------------------------------------------------------------------------------------


@contextmanager
def compile_callbacks(
    on_start: Callable[[object], None], on_end: Callable[[object], None]
) -> Iterator[None]:
    """Call the functions at the start and the end of each compilation while the block runs.

    Source: torch/_dynamo/callback.py, `CompilationCallbackHandler`.
    """
    callback_handler.register_start_callback(on_start)
    callback_handler.register_end_callback(on_end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(on_start)
        callback_handler.remove_end_callback(on_end)


@contextmanager
def graph_limit(graphs: int) -> Iterator[None]:
    """Let PyTorch compile up to `graphs` graphs of a function while the block runs.

    At its default limits, 8 per function and 256 in all, it silently stops compiling. Source:
    torch/_dynamo/config.py, `recompile_limit` and `accumulated_recompile_limit`.
    """
    with torch._dynamo.config.patch(recompile_limit=graphs, accumulated_recompile_limit=graphs):
        yield


def compiled_call(module: torch.nn.Module) -> AnyFunction:
    """Return the function that a module runs since `torch.nn.Module.compile`."""
    return cast("AnyFunction", module._compiled_call_impl)


def set_compiled_call(module: torch.nn.Module, call: AnyFunction | None) -> None:
    """Make a module run `call` when it is called, or its own code if None.

    `torch.nn.Module.compile` cannot be undone. Source: torch/nn/modules/module.py,
    `Module._wrapped_call_impl`.
    """
    module._compiled_call_impl = call


def repeated_blocks(denoiser: torch.nn.Module) -> frozenset[str]:
    """Return the classes of a denoiser's repeated blocks, by its declaration or else its lists.

    `compile_repeated_blocks` cannot be undone. Source: diffusers/models/modeling_utils.py,
    `ModelMixin._repeated_blocks`.
    """
    if declared := getattr(denoiser, "_repeated_blocks", None):
        return frozenset(declared)
    classes: set[str] = set()
    for child in denoiser.children():
        if isinstance(child, torch.nn.ModuleList):
            classes.update(type(block).__name__ for block in child)
    return frozenset(name for name in classes if "Block" in name)


# --- Samplers -------------------------------------------------------------------------------------

# These index a table on the CPU by a timestep on the device, and two search for it there.
WAITING_SCHEDULERS = (
    diffusers.DDIMScheduler, diffusers.DDPMScheduler,
    diffusers.LCMScheduler, diffusers.PNDMScheduler,
)  # fmt: skip


def step_on_host(scheduler: Untyped) -> None:
    """Make a scheduler of a text-to-image call take its timesteps from the host.

    Otherwise each step waits for the device. The results are bitwise equal. Source:
    `alphas_cumprod[timestep]` and `self.timesteps` in diffusers/schedulers/scheduling_ddim.py,
    scheduling_ddpm.py, scheduling_lcm.py and scheduling_pndm.py.
    """
    if not isinstance(scheduler, WAITING_SCHEDULERS):
        return
    step: AnyFunction = scheduler.step
    set_timesteps: AnyFunction = scheduler.set_timesteps
    on_host = torch.empty(0)
    timesteps: Iterator[torch.Tensor] = iter(())

    @wraps(set_timesteps)
    def set_on_host(*args: object, **kwargs: object) -> None:
        nonlocal on_host, timesteps
        set_timesteps(*args, **kwargs)
        on_host = scheduler.timesteps.cpu()
        timesteps = iter(on_host.unbind())

    @wraps(step)
    def step_from_host(
        noise: Untyped, _timestep: object, *args: object, **kwargs: object
    ) -> Untyped:
        with replaced_method(scheduler, "timesteps", on_host):
            return step(noise, next(timesteps), *args, **kwargs)

    scheduler.set_timesteps = set_on_host
    scheduler.step = step_from_host


def pinned_step_noise(scheduler: Untyped) -> AbstractContextManager[None]:
    """Make a scheduler sample the noise of its steps into pinned memory while the block runs.

    By default it samples into pageable memory, and the copy waits for all queued work.
    Source: `randn_tensor` of diffusers/utils/torch_utils.py, a name in each scheduler's module.
    """
    module = sys.modules[type(scheduler).__module__]
    return replaced_method(module, "randn_tensor", _draw_pinned)


def _draw_pinned(
    shape: Sequence[int],
    generator: object,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if not isinstance(generator, list):
        drawn: torch.Tensor = randn_tensor(shape, generator, device, dtype)
        return drawn
    return to_device(randn_tensor(shape, generator, dtype=dtype), device)


def to_device(noise: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy noise to a device. On a GPU, the copy does not wait for queued work."""
    if device.type == "cuda":
        noise = mark_shared(noise.pin_memory())
    return noise.to(device, non_blocking=True)


# --- Pipelines ------------------------------------------------------------------------------------


def execution_device(pipe: diffusers.DiffusionPipeline) -> torch.device:
    """Return the device that a pipeline computes on, which its weights may reach only then.

    Source: diffusers/pipelines/pipeline_utils.py, `DiffusionPipeline._execution_device`.
    """
    device: torch.device = pipe._execution_device
    return device


def pack_latents(pipe: diffusers.DiffusionPipeline, latents: torch.Tensor) -> torch.Tensor:
    """Pack latents (batch, channels, height, width) for a pipeline's argument `latents`.

    Source: diffusers/pipelines/flux/pipeline_flux.py, `FluxPipeline._pack_latents`; Chroma and
    Qwen-Image have the same.
    """
    packed: torch.Tensor = pipe._pack_latents(latents, *latents.shape)
    return packed


@contextmanager
def per_image_control_noise(
    pipe: diffusers.DiffusionPipeline, generators: object
) -> Iterator[None]:
    """Make the pipeline encode control images with the generators of their rows, in the block.

    SD 3's ControlNet pipeline samples latents without a generator. Source:
    diffusers/pipelines/controlnet_sd3/pipeline_stable_diffusion_3_controlnet.py,
    `vae.encode(control_image).latent_dist.sample()`.
    """
    affected = isinstance(pipe, diffusers.StableDiffusion3ControlNetPipeline)
    if not affected or not isinstance(generators, list):
        yield
        return
    encode = _sampling_by(generators, pipe.vae.encode)
    with replaced_method(pipe.vae, "encode", encode):
        yield


def _sampling_by(generators: Sequence[torch.Generator], encode: AnyFunction) -> AnyFunction:
    @wraps(encode)
    def encode_by_generators(images: torch.Tensor) -> Untyped:
        encoded = encode(images)
        # With guidance, each image is repeated: for the negative prompts, then for the prompts.
        repeated = [*generators] * (len(images) // len(generators))
        encoded.latent_dist.sample = partial(encoded.latent_dist.sample, repeated)
        return encoded

    return encode_by_generators


@contextmanager
def restored_vae_dtype(pipe: diffusers.DiffusionPipeline) -> Iterator[None]:
    """Restore the VAE's dtype after the block.

    SDXL's pipelines use float32 for float16 models, and restore the dtype only after a success;
    inpainting with a ControlNet never does. Source: `needs_upcasting` and `_encode_vae_image` of
    diffusers/pipelines/stable_diffusion_xl/pipeline_stable_diffusion_xl.py and
    controlnet/pipeline_controlnet_inpaint_sd_xl.py.
    """
    vae: Untyped = getattr(pipe, "vae", None)
    dtype = getattr(vae, "dtype", None)
    try:
        yield
    finally:
        if dtype is not None and vae.dtype != dtype:
            vae.to(dtype)


def accept_batch_embeds(pipe: diffusers.DiffusionPipeline) -> None:
    """Make the pipeline accept `ip_adapter_image_embeds` with a row for each image of the batch.

    Its own method repeats the embedding of a single image. Source:
    `prepare_ip_adapter_image_embeds` of
    diffusers/pipelines/stable_diffusion/pipeline_stable_diffusion.py,
    stable_diffusion_3/pipeline_stable_diffusion_3.py and flux/pipeline_flux.py.
    """
    prepare: AnyFunction = _embeds_as_list
    if isinstance(pipe, SD3IPAdapterMixin):
        prepare = _embeds_as_tensor
    pipe.prepare_ip_adapter_image_embeds = prepare


def _embeds_as_list(
    image: None,
    embeds: list[torch.Tensor],
    device: torch.device,
    count: int,
    guided: bool = False,
) -> Untyped:
    return [_embeds_as_tensor(image, embeds, device, count, guided)]


def _embeds_as_tensor(
    _image: None, embeds: list[torch.Tensor], _device: torch.device, _count: int, guided: bool
) -> Untyped:
    negative, positive = embeds
    return torch.cat([negative, positive]) if guided else positive


# --- Models in one file ---------------------------------------------------------------------------


@contextmanager
def checked_conversion(check: Callable[[Untyped, Untyped], None]) -> Iterator[None]:
    """Call `check` with each network that `from_single_file` loads, and its tensors by name.

    Source: diffusers/loaders/single_file_model.py and single_file_utils.py,
    `load_model_dict_into_meta`.
    """
    load: AnyFunction = single_file_model.load_model_dict_into_meta

    @wraps(load)
    def load_and_check(
        network: Untyped, tensors: Untyped, *args: object, **kwargs: object
    ) -> Untyped:
        result = load(network, tensors, *args, **kwargs)
        check(network, tensors)
        return result

    with (
        replaced_method(single_file_model, "load_model_dict_into_meta", load_and_check),
        replaced_method(single_file_utils, "load_model_dict_into_meta", load_and_check),
    ):
        yield


def count_numbers(tensor: torch.Tensor) -> int:
    """Return how many numbers a tensor holds, also one that is packed as in GGUF.

    Source: diffusers/quantizers/gguf/utils.py, `GGUFParameter.quant_shape`.
    """
    return math.prod(getattr(tensor, "quant_shape", tensor.shape))


def keep_gguf_in_linear_layers(network: torch.nn.Module, dtype: torch.dtype) -> None:
    """Dequantize all parameters from GGUF but the weights of linear layers.

    Other layers, and biases, would compute with the packed bytes. Source:
    diffusers/quantizers/gguf/utils.py, `GGUFLinear.forward_native`.
    """
    from diffusers.quantizers.gguf import utils  # needs the package gguf

    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_computed = isinstance(module, utils.GGUFLinear) and name == "weight"
            if isinstance(parameter, utils.GGUFParameter) and not is_computed:
                plain = utils.dequantize_gguf_tensor(parameter).to(dtype)
                setattr(module, name, torch.nn.Parameter(plain, requires_grad=False))


# --- LoRAs ----------------------------------------------------------------------------------------


def lora_components(pipe: diffusers.DiffusionPipeline) -> dict[str, torch.nn.Module]:
    """Return the components of a pipeline that LoRAs can change, by name.

    Source: diffusers/loaders/lora_base.py, `LoraBaseMixin._lora_loadable_modules`.
    """
    names: Sequence[str] = getattr(pipe, "_lora_loadable_modules", ())
    components = {name: getattr(pipe, name, None) for name in names}
    return {
        name: component
        for name, component in components.items()
        if isinstance(component, torch.nn.Module)
    }


def lora_scales_to_tensors(component: torch.nn.Module) -> None:
    """Convert the scales of LoRAs to scalar tensors.

    Python numbers would become constants in compiled code. Source: peft/tuners/tuners_utils.py and
    lora/layer.py, `scaling`.
    """
    for layer in component.modules():
        if isinstance(layer, BaseTunerLayer):
            scales: dict[str, float | torch.Tensor] = vars(layer)["scaling"]
            for name, scale in scales.items():
                scales[name] = torch.as_tensor(scale, dtype=torch.float32)


def set_own_scales(component: torch.nn.Module, adapter: str) -> None:
    """Set the scale of each layer of a LoRA to 1, for weights that include the scale.

    Source: peft/tuners/lora/layer.py, `LoraLayer.set_scale`.
    """
    for layer in component.modules():
        if isinstance(layer, LoraLayer) and adapter in layer.scaling:
            layer.lora_alpha[adapter] = layer.r[adapter]
            layer.set_scale(adapter, 1.0)


# --- Memory of a lost device ----------------------------------------------------------------------

_shared_tensors: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()  # by id


def mark_shared(tensor: torch.Tensor) -> torch.Tensor:
    """Register a tensor that is used on two streams, and return it.

    Its destructor records an event on the device. If the device is lost, that fails and aborts the
    process with SIGABRT, before the failure is reported. Source:
    c10/cuda/CUDACachingAllocator.cpp, `insert_events`.
    """
    _shared_tensors[id(tensor)] = tensor
    return tensor


def keep_shared_tensors() -> None:
    """Keep tensors that streams share until the process ends, because the device is lost."""
    for reference in _shared_tensors.valuerefs():  # copied, since other threads add to it
        if (tensor := reference()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))  # never freed, even at exit
