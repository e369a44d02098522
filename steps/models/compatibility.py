"""Checks of a job's shortcuts, LoRAs and adapters against its pipeline."""

from collections.abc import Collection, Iterator

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.adapters import require_adapter_support
from imagekiln.steps.models.families import FAMILIES, family_of, text_to_image_class


def shortcuts_label(speed: SpeedSettings) -> str | None:
    """The shortcuts as the manifest names them, such as `fp8`; None if there are none."""
    return ",".join(model_key_extras(speed)) or None


def model_key_extras(speed: SpeedSettings) -> Iterator[str]:
    """The settings that, besides the model's files and dtype, change every image of a job."""
    if speed.quantization != "none":
        yield speed.quantization
    if speed.guidance_interval is not None:
        start, end = speed.guidance_interval
        yield f"guidance_interval={start}-{end}"
    if speed.step_cache is not None:
        yield f"step_cache={speed.step_cache.interval}"


def require_compatibility(job: Job, pipeline: str) -> None:
    """Check the job's shortcuts, LoRAs and adapters against its pipeline, adapters by their files.

    Raises BadInput if it does not support one of them, Missing, TryAgain.
    """
    require_pipeline_support(job, pipeline)
    require_adapter_support(job.model, pipeline)


def require_pipeline_support(job: Job, pipeline: str) -> None:
    """Raise BadInput if the pipeline's class does not support the job's shortcuts or LoRAs."""
    require_shortcut_support(job, pipeline)
    require_lora_support(job.model, pipeline)


def require_shortcut_support(job: Job, pipeline: str) -> None:
    """Raise BadInput if a shortcut does not suit this pipeline or the rest of the job."""
    speed = job.speed
    family_name = text_to_image_class(pipeline)
    if speed.quantization == "fp8":
        if job.model.dtype != "bfloat16":
            raise BadInput(
                "speed.quantization is fp8, which needs bfloat16, but model.dtype is "
                f"{job.model.dtype}. Set model.dtype to bfloat16."
            )
        _require_family("quantization", "Set it to none", pipeline, FAMILIES)
    if speed.guidance_interval is not None:
        limited = [name for name, family in FAMILIES.items() if family.limits_guidance]
        _require_family("guidance_interval", "Remove it", family_name, limited)
    if speed.step_cache is not None:
        cached = [name for name, family in FAMILIES.items() if family.caches_steps]
        _require_family("step_cache", "Remove it", family_name, cached)


def require_quantizable_loras(job: Job) -> None:
    """Raise BadInput if LoRAs that rows name would change layers that are quantized."""
    if job.speed.quantization == "fp8" and job.model.loras:
        raise BadInput(
            "speed.quantization is fp8, which works with LoRAs only if all rows share them. Name "
            "them in defaults.loras, and remove the column loras from the prompts or sweep, or "
            "set columns.loras to null. Or set speed.quantization to none."
        )


def _require_family(setting: str, remedy: str, pipeline: str, supported: Collection[str]) -> None:
    """Raise BadInput if a setting of `speed` does not work with the pipeline."""
    if pipeline in supported:
        return
    names = ", ".join(name.removesuffix("Pipeline") for name in supported)
    raise BadInput(
        f"speed.{setting} does not work with {pipeline.removesuffix('Pipeline')}: "
        f"it works with {names}. {remedy}, or choose such a model."
    )


def require_lora_support(model: ModelSettings, pipeline: str) -> None:
    """Raise BadInput if the job has LoRAs and its pipeline is known to take none."""
    if model.loras and not family_of(pipeline).supports_loras:
        raise BadInput(
            f"model.loras: {pipeline} supports no LoRA. Remove them, or choose another model."
        )
