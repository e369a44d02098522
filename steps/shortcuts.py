"""The shortcuts that a job takes: what they are called, and which models can take them."""

from collections.abc import Iterable, Iterator

from imagekiln.steps.errors import BadInput
from imagekiln.steps.families import FAMILIES, Family, family
from imagekiln.steps.job import Job
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.speed import Speed

ALL_STEPS = 1.0


def told(speed: Speed) -> str | None:
    """The shortcuts as the manifest names them, such as `fp8,guidance_until=0.6,reuse=3`; None where there are none."""
    return ",".join(_names(speed)) or None


def _names(speed: Speed) -> Iterator[str]:
    if speed.quantization != "none":
        yield speed.quantization
    if speed.guidance_until < ALL_STEPS:
        yield f"guidance_until={speed.guidance_until}"
    if speed.reuse > 1:
        yield f"reuse={speed.reuse}"


def require(job: Job, pipeline: str) -> None:
    """Raise BadInput where a shortcut of the job is none for this pipeline's class, or for the rest of the job."""
    speed, known = job.speed, family(pipeline)
    if speed.quantization == "fp8" and job.model.dtype != "bfloat16":
        raise BadInput(
            f"speed.quantization is fp8, which scales bfloat16, and model.dtype is {job.model.dtype}. Write bfloat16."
        )
    if speed.quantization == "fp8" and pipeline not in FAMILIES:
        raise _not_for("quantization", "none", pipeline, FAMILIES)
    if speed.guidance_until < ALL_STEPS and known.halved is None:
        raise _not_for("guidance_until", "1", pipeline, [name for name, each in FAMILIES.items() if _can_end(each)])
    if speed.quantization == "fp8" and job.model.loras:
        raise BadInput("speed.quantization is fp8, and model.loras change layers that are in 8 bits then. Remove one.")
    if (without := without_pictures(job)) and (job.model.controlnet or job.model.ip_adapter):
        raise BadInput(f"{without} does not go with model.controlnet or model.ip_adapter. Remove it, or them.")
    if speed.guidance_until < ALL_STEPS and job.model.refiner is not None:
        raise BadInput("speed.guidance_until ends guidance before a refiner begins. Remove it, or model.refiner.")
    if speed.reuse > 1 and not known.foretold:
        raise _not_for("reuse", "1", pipeline, [name for name, each in FAMILIES.items() if each.foretold])


def without_pictures(job: Job) -> str | None:
    """The setting that draws from texts alone, where the job has one."""
    names = {
        "model.refiner": job.model.refiner is not None,
        "speed.guidance_until": job.speed.guidance_until < ALL_STEPS,
        "speed.reuse": job.speed.reuse > 1,
    }
    return next((name for name, there in names.items() if there), None)


def _can_end(known: Family) -> bool:
    return known.halved is not None


def _not_for(name: str, default: str, pipeline: str, able: Iterable[str]) -> BadInput:
    names = ", ".join(each.removesuffix("Pipeline") for each in able)
    return BadInput(
        f"speed.{name} is not for {pipeline.removesuffix('Pipeline')}: it works with {names}. "
        f"Set it to {default}, or take such a model."
    )


def further(job: Job, model: ModelFacts) -> Iterator[str]:
    """What beside the model's files and dtype changes every picture of a job: shortcuts, and a refiner."""
    yield from _names(job.speed)
    if job.model.refiner is not None:
        yield f"refiner={model.refiner}@{job.model.refiner.start}"
