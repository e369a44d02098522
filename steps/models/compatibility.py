"""The shortcuts that a job takes: what they are called, and which models can take them."""

from collections.abc import Iterator

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.speed import SpeedSettings
from imagekiln.steps.models.adapters import require_adapter_support
from imagekiln.steps.models.families import FAMILIES
from imagekiln.steps.models.lora_files import require_lora_support


def shortcuts_label(speed: SpeedSettings) -> str | None:
    """The shortcuts as the manifest names them, such as `fp8`; None where there are none."""
    return ",".join(model_key_extras(speed)) or None


def model_key_extras(speed: SpeedSettings) -> Iterator[str]:
    """What beside the model's files and dtype changes every picture of a job."""
    if speed.quantization != "none":
        yield speed.quantization


def require_shortcut_support(job: Job, pipeline: str) -> None:
    """Raise BadInput where a shortcut of the job is none for this pipeline's class, or for the rest of the job."""
    if job.speed.quantization != "fp8":
        return
    if job.model.dtype != "bfloat16":
        raise BadInput(
            f"speed.quantization is fp8, which scales bfloat16, and model.dtype is {job.model.dtype}. Write bfloat16."
        )
    if pipeline not in FAMILIES:
        names = ", ".join(each.removesuffix("Pipeline") for each in FAMILIES)
        raise BadInput(
            f"speed.quantization is not for {pipeline.removesuffix('Pipeline')}: it works with {names}. "
            "Set it to none, or take such a model."
        )
    if job.model.loras:
        raise BadInput(
            "speed.quantization is fp8, and model.loras change layers that are in 8 bits then. Remove one."
        )


def require_compatibility(job: Job, pipeline: str) -> None:
    """Raise BadInput where a shortcut, a network or a LoRA of the job is none for this pipeline; Missing, TryAgain."""
    require_shortcut_support(job, pipeline)
    require_adapter_support(job.model, pipeline)
    require_lora_support(job.model, pipeline)
