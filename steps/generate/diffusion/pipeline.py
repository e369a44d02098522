"""Load a diffusers pipeline: safetensors only, no remote code, in the plan's dtype."""

import inspect
import logging
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import diffusers
import torch
import transformers

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, in_setting
from imagekiln.steps.generate.diffusion.compile import (
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
from imagekiln.steps.generate.diffusion.placing import HOST
from imagekiln.steps.generate.diffusion.quantization import (
    quantize_denoiser,
    require_quantization_support,
)
from imagekiln.steps.job.execution import Placement
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
from imagekiln.steps.models.passes import PASSES_PREFIX, list_weights, pass_references
from imagekiln.steps.models.placement import GIB, PLACEMENTS, choose_placement
from imagekiln.steps.models.transformers_models import fetch_planned_files, score_references
from imagekiln.steps.runs.plan import Plan, iter_pass_plans
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.machine import THREADS_VARIABLE, available_cpus
from imagekiln.steps.storage.failures import error_reason, explain_storage_error
from imagekiln.steps.storage.uri import resolve_path

MAX_CUDA_THREADS = 8
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
log = logging.getLogger(__name__)


def load_pipeline(
    plan: Plan, weights: WeightsCheck | None = None, placement: Placement = "resident"
) -> diffusers.DiffusionPipeline:
    """Load the plan's pipeline, whose weights are yet to be placed.

    `weights` is a check that has already begun. Only a quantized denoiser is on the device already.
    Raises BadInput if the model does not load, TryAgain if its device is missing.
    """
    model = plan.job.model
    with weights or WeightsCheck(model, plan.model.digest) as check:
        device = open_device(plan)
        pipe = load_pretrained(model, check, plan.model.pipeline)
    _require_text_input(model.id, pipe)
    if plan.fused_loras is not None:
        fuse_loras(pipe, model.loras, plan.loras, plan.fused_loras, device)
    if device.type == "cuda":  # fastest for convolutions
        denoiser_network(pipe).to(memory_format=torch.channels_last)
    if plan.job.speed.quantization != "none":
        home = HOST if placement == "offload" else device
        for network in denoisers_of(pipe):
            quantize_denoiser(network, plan.job.speed.quantization, device, home)
    return pipe


def decide_placement(plan: Plan) -> Placement:
    """Decide where the weights are kept, by the memory of the plan's device.

    Raises BadInput if they do not fit, TryAgain if the device is missing.
    """
    device = choose_device(plan.job.device)
    memory = device_memory(device)
    weights = list_weights(plan.job, plan.model, plan.passes)
    gib = None if memory is None else memory / GIB
    placement = choose_placement(plan.job, weights, gib, describe_device(device)) or "resident"
    if placement != "resident":
        log.info("Weights: %s (speed.placement: %s).", PLACEMENTS[placement], placement)
    return placement


def open_device(plan: Plan) -> torch.device:
    """Choose the plan's device and set it up for the job."""
    device = choose_device(plan.job.device)
    # Compiled code calls convolutions through PyTorch, which reads this at each call.
    torch.backends.cudnn.deterministic = True
    if plan.job.speed.quantization != "none":
        require_quantization_support(device, plan.job.speed.quantization)
    _refuse_emulated_dtype(plan, device)
    _limit_threads(device)
    return device


def load_pretrained(
    model: ModelSettings, weights: WeightsCheck, pipeline: str
) -> diffusers.DiffusionPipeline:
    """Load a model on the host, in eval mode, and check its files against the plan.

    `pipeline` is the name of its class, which a single-file model does not state.
    """
    folder = fetch_model(model, weights)
    _silence_libraries()
    try:
        require_data_only(folder, model.id)
        pipe = _load_networks(model, folder, pipeline)
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
    call = inspect.signature(pipe.__call__)
    arguments: dict[str, object] = {"prompt": ""}
    if (images := known_call_of(name).images_argument) in call.parameters:
        arguments[str(images)] = None
    try:
        call.bind(**arguments)
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
