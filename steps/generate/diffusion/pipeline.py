"""Load a diffusers pipeline: safetensors only, no remote code, in the plan's dtype."""

import inspect
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import diffusers
import torch
import transformers

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, in_setting
from imagekiln.steps.generate.diffusion.compile import (
    blocks_of,
    create_code_folder,
    denoisers_of,
)
from imagekiln.steps.generate.diffusion.device import (
    choose_device,
    describe_device,
    device_memory,
    explain_device,
)
from imagekiln.steps.generate.diffusion.loading import load_checkpoint, load_gguf, load_networks
from imagekiln.steps.generate.diffusion.loras import fuse_loras
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.adapters import adapters_by_column, fetch_planned_adapter
from imagekiln.steps.models.checkpoints import (
    checkpoint_file,
    configuration_reference,
    is_gguf,
    scheduler_changes,
)
from imagekiln.steps.models.component_files import (
    denoiser_component,
    read_model_index,
    require_data_only,
)
from imagekiln.steps.models.facts import WeightsCheck, configuration_folder
from imagekiln.steps.models.families import known_call_of
from imagekiln.steps.models.hub import (
    ask_hub,
    download_configuration,
    is_hub_id,
)
from imagekiln.steps.models.loras import fetch_planned_lora
from imagekiln.steps.models.passes import PASSES_PREFIX, pass_references, sum_weights
from imagekiln.steps.models.performance import GIB, require_room
from imagekiln.steps.models.transformers_models import fetch_planned_files, score_references
from imagekiln.steps.runs.plan import Plan, iter_pass_plans
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.machine import THREADS_VARIABLE, available_cpus
from imagekiln.steps.storage.failures import error_reason, explain_storage_error
from imagekiln.steps.storage.uri import resolve_path

MAX_CUDA_THREADS = 8
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# By speed.quantization: Ada, as Hopper is 9.0, and Blackwell.
MIN_CAPABILITIES = {"fp8": (8, 9), "nvfp4": (10, 0)}
SIDE_MULTIPLE = 16  # both sides of a product in 8 or 4 bits must be multiples of this
# Modulation layers have one row per image: too little to gain.
MODULATION_PATTERN = re.compile(r"norm|_mod\.|modulation|time_emb")
# SDXL's empty negative prompt is all zeros. Divided by a scale of 0, it would not be finite.
ACTIVATION_LOWER_BOUND = 1e-12


def load_pipeline(plan: Plan, weights: WeightsCheck | None = None) -> diffusers.DiffusionPipeline:
    """Load the plan's pipeline, ready to run. `weights` is a check that has already begun.

    Raises BadInput if the model does not load, TryAgain if its device is missing.
    """
    model = plan.job.model
    with weights or WeightsCheck(model, plan.model.digest) as check:
        device = open_device(plan)
        pipe = load_pretrained(model, device, check, plan.model.pipeline)
    _require_text_input(model.id, pipe)
    if plan.fused_loras is not None:
        fuse_loras(pipe, model.loras, plan.loras, plan.fused_loras)
    if plan.job.speed.quantization != "none":
        for network in denoisers_of(pipe):
            quantize_denoiser(network, plan.job.speed.quantization)
    if pipe.device.type == "cuda":  # fastest for convolutions
        denoiser_network(pipe).to(memory_format=torch.channels_last)
    return pipe


def open_device(plan: Plan) -> torch.device:
    """Choose the plan's device and set it up for the job."""
    device = choose_device(plan.job.device)
    # Compiled code calls convolutions through PyTorch, which reads this at each call.
    torch.backends.cudnn.deterministic = True
    if plan.job.speed.quantization != "none":
        require_quantization_support(device, plan.job.speed.quantization)
    _refuse_emulated_dtype(plan, device)
    if memory := device_memory(device):
        weights_bytes = sum_weights(plan.model, plan.passes)
        require_room(plan.job, weights_bytes, memory / GIB, describe_device(device))
    _limit_threads(device)
    return device


def load_pretrained(
    model: ModelSettings, device: torch.device, weights: WeightsCheck, pipeline: str
) -> diffusers.DiffusionPipeline:
    """Load a model on its device, in eval mode, and check its files against the plan.

    `pipeline` is the name of its class, which a single-file model does not state.
    """
    folder = fetch_model(model, weights)
    _silence_libraries()
    try:
        require_data_only(folder, model.id)
        pipe = _load_networks(model, folder, pipeline).to(device)
    except Exception as error:  # the libraries may raise anything on a user's folder
        with suppress(Missing):
            weights.require_planned()  # changed or damaged files explain the error
        if isinstance(error, KilnError):
            raise
        raise _explain_load_error(model.id, error) from error
    weights.require_planned()
    pipe.set_progress_bar_config(disable=True)
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval()  # in train mode, dropout is random
    return pipe


def _silence_libraries() -> None:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for library in (diffusers, transformers):  # a pod's log is for the job's messages
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()


def _load_networks(
    model: ModelSettings, folder: Path, pipeline: str
) -> diffusers.DiffusionPipeline:
    dtype = DTYPES[model.dtype]
    file = checkpoint_file(model)
    index = read_model_index(folder, model.id)
    networks = {}
    if file is not None and is_gguf(file):
        networks = load_gguf(file, folder, index, dtype)
    elif file is not None:
        pipe = load_checkpoint(file, folder, pipeline, dtype)
        changes = scheduler_changes(model)
        pipe.scheduler = pipe.scheduler.from_config(pipe.scheduler.config, **changes)
        return pipe
    others = {name: value for name, value in index.items() if name not in networks}
    networks |= load_networks(folder, others, model.variant, dtype)
    return diffusers.DiffusionPipeline.from_pretrained(
        folder,
        **networks,
        dtype=dtype,
        variant=model.variant,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )


def denoiser_network(pipe: diffusers.DiffusionPipeline) -> diffusers.ModelMixin:
    """Return the network of a pipeline that runs at every step."""
    return pipe.unet if hasattr(pipe, "unet") else pipe.transformer


def _limit_threads(device: torch.device) -> None:
    """Limit the CPU threads on CUDA, since the CPU only feeds the device."""
    if device.type == "cuda" and THREADS_VARIABLE not in os.environ:
        torch.set_num_threads(min(available_cpus(), MAX_CUDA_THREADS))


def _refuse_emulated_dtype(plan: Plan, device: torch.device) -> None:
    """Raise BadInput if the GPU only emulates the plan's dtype, which is many times slower."""
    model = plan.job.model
    if device.type != "cuda" or model.dtype != "bfloat16":
        return
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return
    raise BadInput(
        f"{model.id}: is planned in bfloat16, which {describe_device(device)} does not have. "
        "Set model.dtype: float16 and plan anew, or use a GPU of compute capability 8.0 or more."
    )


def _require_text_input(model_id: str, pipe: diffusers.DiffusionPipeline) -> None:
    """Raise BadInput if a pipeline takes no prompt, or requires more than a prompt and images."""
    name = type(pipe).__name__
    images = dict.fromkeys(filter(None, [known_call_of(name).images_argument]))
    call = inspect.signature(pipe.__call__)
    try:
        call.bind(prompt="", **{name: None for name in images if name in call.parameters})
    except TypeError as error:
        raise BadInput(
            f"{model_id}: is a {name}, which does not draw from a text alone ({error}). "
            "Choose another."
        ) from error


def _explain_load_error(name: str, error: Exception) -> KilnError:
    if failure := explain_device(name, error):
        return failure
    reason = error_reason(error)
    if isinstance(error, OSError) and error.errno is not None:
        explained = explain_storage_error(str(error.filename or name), error)
        return explained or TryAgain(f"{name}: storage failed ({reason}).")
    return BadInput(
        f"{name}: does not load as a diffusers pipeline ({reason}). Choose another model."
    )


def library_versions(job: Job) -> dict[str, str]:
    """Return the versions of the libraries that affect the pixels and the speed of a job."""
    versions = {
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
    }
    if job.model.loras:
        versions["peft"] = version("peft")
    if job.speed.quantization != "none":
        versions["torchao"] = version("torchao")
    return versions


def fetch_model(model: ModelSettings, weights: WeightsCheck) -> Path:
    """Return the folder of a model, or of a single file's configuration, downloaded if need be.

    The check of a local folder may still be running.
    """
    file = checkpoint_file(model)
    reference = configuration_reference(model)
    if file is not None and not (is_gguf(file) and is_hub_id(reference.id)):
        return configuration_folder(model)
    if not is_hub_id(reference.id):
        return Path(resolve_path(reference.id))
    # A folder's name on the planning machine may be a hub id here, so check it first.
    weights.require_planned()
    configuration = download_configuration(reference)  # refuses damaged files
    index = read_model_index(configuration, reference.id)
    from_file = {denoiser_component(index): None} if file is not None else {}

    def download() -> Path:
        return Path(
            diffusers.DiffusionPipeline.download(
                reference.id,
                revision=reference.revision,
                variant=model.variant,
                use_safetensors=True,
                **from_file,
            )
        )

    folder = ask_hub(reference, download)
    weights.add_downloaded(folder)
    return folder


def fetch_run_models(uri: str) -> str:
    """Download a planned run's model, LoRAs, adapters, scorers and passes.

    Returns the model's folder. Also creates the folder for compiled code. Raises BadInput, Missing,
    TryAgain.
    """
    create_code_folder()
    plan = open_run(uri).plan
    job = plan.job
    folder = _fetch_planned_model(plan)
    for name, pass_plan in iter_pass_plans(plan):
        with in_setting(f"{PASSES_PREFIX}{name}"):
            _fetch_planned_model(pass_plan)
    job = plan.job
    adapters = adapters_by_column(job.model)
    for column, adapter in adapters.items():
        key = plan.adapters[column]
        fetch_planned_adapter(adapter, key)
    for name, lora in job.model.loras.items():
        facts = plan.loras[name]
        fetch_planned_lora(name, lora, facts.sha256)
    digests = dict(plan.scores)
    for name, pass_facts in plan.passes.items():
        digests[f"{PASSES_PREFIX}{name}"] = pass_facts.digest
    for setting, reference in (*score_references(job), *pass_references(job)):
        digest = digests.get(setting)
        fetch_planned_files(setting, reference, digest)
    return str(folder)


def _fetch_planned_model(plan: Plan) -> Path:
    with WeightsCheck(plan.job.model, plan.model.digest) as weights:
        folder = fetch_model(plan.job.model, weights)
        weights.require_planned()
    return folder


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


def quantize_denoiser(denoiser: diffusers.ModelMixin, method: str) -> None:
    """Quantize the linear layers of the repeated blocks to fp8 or nvfp4, before it is compiled.

    Activations are scaled by token, or by 16 numbers of it, so no image depends on its neighbors.
    """
    from torchao.quantization import quantize_

    layers = set(quantizable_layers(denoiser))
    if not layers:
        raise BadInput(
            f"speed.quantization is {method}, and the denoiser has no layer that it can hold. "
            "Write none."
        )
    config = _fp8_config() if method == "fp8" else _nvfp4_config()
    quantize_(denoiser, config, filter_fn=lambda _, name: name in layers)
    if method == "nvfp4":
        for name in layers:
            # Otherwise the largest number of a batch would scale all of its images.
            weight = denoiser.get_submodule(name).weight
            weight.act_quant_kwargs.use_dynamic_per_tensor_scale = False


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
        is_modulation = MODULATION_PATTERN.search(name)
        if not is_modulation and _is_quantizable(module.weight):
            yield name


def _is_quantizable(weight: torch.Tensor) -> bool:
    if any(side % SIDE_MULTIPLE for side in weight.shape):
        return False
    return bool(weight.any(dim=1).all())  # each row needs a scale other than 0
