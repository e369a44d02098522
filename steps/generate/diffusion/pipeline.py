"""Loading a diffusers pipeline: safetensors only, no remote code, on the device and in the dtype of the plan."""

import inspect
from importlib.metadata import version
from pathlib import Path

import diffusers
import torch
import transformers

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.diffusion.device import (
    choose_device,
    describe_device,
    is_device_lost,
    is_out_of_memory,
)
from imagekiln.steps.generate.diffusion.quantize import quantize_to_fp8, require_fp8_support
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.samplers import SCHEDULERS
from imagekiln.steps.models.adapters import adapters_by_column, fetch_planned_adapter
from imagekiln.steps.models.facts import is_hub_id, weights_digest
from imagekiln.steps.models.hub import translate_hub_errors
from imagekiln.steps.models.lora_files import fetch_planned_lora
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import error_reason, explain_storage_error
from imagekiln.steps.storage.uri import resolve_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_pipeline(plan: Plan) -> diffusers.DiffusionPipeline:
    """The plan's pipeline, ready to run. Raises BadInput where it does not load, TryAgain without its device."""
    device = choose_device(plan.job.device)
    in_fp8 = plan.job.speed.quantization == "fp8"
    if in_fp8:
        require_fp8_support(device)
    _refuse_emulated_dtype(plan, device)
    if plan.job.threads is not None:
        torch.set_num_threads(plan.job.threads)
    pipe = load_pretrained(plan.job.model, plan.model.digest, device)
    _require_text_input(plan.job.model.id, pipe)
    if in_fp8:
        quantize_to_fp8(denoiser_network(pipe))
    return pipe


def load_pretrained(
    wanted: ModelSettings, digest: str, device: torch.device
) -> diffusers.DiffusionPipeline:
    """A model on its device, in eval mode. Raises BadInput where it does not load, and what `folder` raises."""
    files = fetch_model(wanted, digest)
    for library in (diffusers, transformers):  # a pod's log is for what the job does
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            files, dtype=DTYPES[wanted.dtype], use_safetensors=True, local_files_only=True
        ).to(device)
    except KilnError:
        raise
    except Exception as error:  # whatever a stranger's folder makes the libraries raise
        raise _explain_load_error(wanted.id, error) from error
    pipe.set_progress_bar_config(disable=True)
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval()  # a component in train mode drops out at random
    return pipe


def denoiser_network(pipe: diffusers.DiffusionPipeline) -> diffusers.ModelMixin:
    """The part of a pipeline that runs at every step."""
    return pipe.unet if hasattr(pipe, "unet") else pipe.transformer


def _refuse_emulated_dtype(plan: Plan, device: torch.device) -> None:
    """Raise BadInput where a GPU would compute the plan's dtype in pieces, many times slower than another."""
    wanted = plan.job.model
    if (
        device.type != "cuda"
        or wanted.dtype != "bfloat16"
        or torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        return
    raise BadInput(
        f"{wanted.id}: is planned in bfloat16, which {describe_device(device)} does not have. "
        "Set model.dtype: float16 and plan anew, or use a GPU of compute capability 8.0 or more."
    )


def _require_text_input(name: str, pipe: diffusers.DiffusionPipeline) -> None:
    """Raise BadInput where a pipeline takes no text, or not a text alone."""
    taken = inspect.signature(pipe.__call__).parameters
    needed = [
        each
        for each, how in taken.items()
        if how.default is how.empty and how.kind is how.POSITIONAL_OR_KEYWORD
    ]
    if "prompt" not in taken or set(needed) - {"prompt"}:
        given = ", ".join(needed) or "no text"
        raise BadInput(
            f"{name}: is a {type(pipe).__name__}, which draws from {given}. Name one that draws from texts."
        )


def make_scheduler(pipe: diffusers.DiffusionPipeline, sampler: str) -> diffusers.SchedulerMixin:
    """A scheduler by the sampler's name, with the model's own configuration under it.

    Raises ValueError where it does not fit the model: the images that asked for it fail, and no others.
    """
    if sampler == "default":
        return pipe.scheduler
    spec = SCHEDULERS[sampler]
    wanted, given = getattr(diffusers, spec.class_name), type(pipe.scheduler)
    kin = {given, *pipe.scheduler.compatibles}
    # LCM's scheduler names no kin, but runs on what DDIM's runs on.
    if wanted not in kin and not (sampler == "lcm" and diffusers.DDIMScheduler in kin):
        raise ValueError(
            f"sampler {sampler!r} does not fit this model, which came with {given.__name__}"
        )
    try:
        return wanted.from_config(pipe.scheduler.config, **spec.config)
    except (ImportError, ValueError, TypeError) as error:
        raise ValueError(
            f"sampler {sampler!r} does not fit this model ({str(error).strip()})"
        ) from error


def _explain_load_error(name: str, error: Exception) -> KilnError:
    first = error_reason(error)
    if is_out_of_memory(error) or is_device_lost(error):
        return TryAgain(
            f"{name}: the device has no room for it, or failed ({first}). Run the shard again."
        )
    if isinstance(error, OSError) and error.errno is not None:
        return explain_storage_error(str(error.filename or name), error) or TryAgain(
            f"{name}: storage failed ({first})."
        )
    return BadInput(f"{name}: does not load as a diffusers pipeline ({first}). Name another model.")


def library_versions(job: Job) -> dict[str, str]:
    """The libraries that decide the pixels and the speed of a job."""
    found = {
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
    }
    if job.model.loras:
        found["peft"] = version("peft")
    if job.speed.quantization == "fp8":
        found["torchao"] = version("torchao")
    return found


def fetch_model(wanted: ModelSettings, digest: str) -> Path:
    """The files of a model on this machine, brought here if need be. Raises BadInput, Missing, TryAgain."""
    # First of all: what was a folder there may be the name of a stranger's hub model here.
    if weights_digest(wanted) != digest:
        raise BadInput(
            f"{wanted.id}: is not the model that the run was planned with. Restore it, or plan anew."
        )
    if is_hub_id(wanted.id):
        with translate_hub_errors(wanted):
            return Path(
                diffusers.DiffusionPipeline.download(
                    wanted.id, revision=wanted.revision, use_safetensors=True
                )
            )
    return Path(resolve_path(wanted.id))


def fetch_run_models(uri: str) -> str:
    """Bring a planned run's model, adapters and LoRAs into this machine's cache; give the model's folder.

    Raises BadInput, Missing and TryAgain as the hub has it.
    """
    plan = load_plan(open_store(uri))
    folder = fetch_model(plan.job.model, plan.model.digest)
    for column, each in adapters_by_column(plan.job.model).items():
        fetch_planned_adapter(each, plan.adapters[column])
    for name, lora in plan.job.model.loras.items():
        fetch_planned_lora(name, lora, plan.loras[name].sha256)
    return str(folder)
