"""What a model draws with where a job sets nothing, and what it makes of guidance.

In this order: by the name of a well-known model, by its files, by the name of the model that it
was made from, by the defaults of its pipeline's call.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imagekiln.steps.job.fields import PipelineSettings
from imagekiln.steps.models.component_files import Config, read_json
from imagekiln.steps.models.pipeline_calls import PipelineCall, call_of
from imagekiln.steps.models.samplers import SCHEDULER_CONFIG

GUIDER_CONFIG = "guider/guider_config.json"
GUIDER_DEFAULT = 3.5  # of diffusers' AdaptiveProjectedMixGuidance
WEIGHTS_SUFFIX = re.compile(r"(\.safetensors|-(bf16|fp16|fp8|diffusers))$")
FEW_STEPS = 12  # a call that has no more by default is made for distilled models
DISTILLED_NAME = re.compile(r"turbo|lightning|schnell|distill|lcm|(^|-)(hyper|flash)(-|$)")
NO_GUIDANCE = 1.0  # up to here, a number means none for models that read none
Numbers = tuple[int, float]

# Steps and guidance of models that need other ones than their pipeline's call has by default, by
# the last part of their names: as their model cards say, or what is said beside them.
WELL_KNOWN: Mapping[str, Numbers] = {
    "bundled:shapes": (10, 3.0),
    "chroma1-hd": (40, 3.0),
    "cogview4-6b": (50, 3.5),
    "ernie-image-turbo": (8, 1.0),
    "flux.1-krea-dev": (28, 4.5),
    "flux.1-schnell": (4, 0.0),
    "flux1-schnell": (4, 0.0),  # the file's name
    "hidream-i1-dev": (28, 0.0),
    "hidream-i1-fast": (16, 0.0),
    "krea-2-turbo": (8, 0.0),  # diffusers' page on Krea 2
    "lumina-image-2.0": (50, 4.0),
    "playground-v2.5-1024px-aesthetic": (50, 3.0),
    "sd-turbo": (1, 0.0),
    "sd-xl-turbo-1.0": (1, 0.0),  # the file's name
    "sdxl-turbo": (1, 0.0),
    "stable-diffusion-3.5-large": (28, 3.5),
    "stable-diffusion-3.5-large-turbo": (4, 0.0),
    "stable-diffusion-3.5-medium": (40, 4.5),
    "z-image": (50, 4.0),
    "z-image-turbo": (8, 0.0),  # 9 before diffusers 0.39, which counted one that did nothing
}


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The steps and guidance of a model, where they are from, and what it reads of a job's.

    `steps` is None where nothing says them, as `source` explains. `guidance` is None where the
    model reads none, or follows a schedule of its own, which is for `schedule_steps` steps. Above
    `guided_above` the denoiser runs twice a step; None: it never does, and no negative prompt has
    an effect.
    """

    steps: int | None
    guidance: float | None
    source: str
    reads_guidance: bool = True
    reads_negative_prompt: bool = True
    guided_above: float | None = None
    schedule_steps: int | None = None

    def is_guided(self, guidance: float | None) -> bool:
        """Whether the denoiser runs twice a step at this guidance."""
        if guidance is None:
            return self.schedule_steps is not None
        return self.guided_above is not None and guidance > self.guided_above


def read_own_settings(
    model: PipelineSettings, folder: Path, index: Config, denoiser: Config
) -> OwnSettings:
    """The settings of a model with these configurations in `folder`. Raises BadInput, TryAgain."""
    pipeline = str(index["_class_name"])
    call = call_of(pipeline)
    if call is None:
        source = f"{pipeline} is not known to this version"
        return OwnSettings(None, None, source, reads_negative_prompt=True)
    call = _with_files(call, pipeline, folder, index, denoiser)
    numbers = _find_numbers(model, folder, index, denoiser)
    own = OwnSettings(
        call.steps,
        call.guidance,
        f"defaults of {pipeline}",
        call.guidance_argument is not None,
        call.takes_negative_prompt,
        call.guided_above,
        call.schedule_steps,
    )
    if numbers is not None:
        (steps, guidance), source = numbers
        own = replace(own, steps=steps, guidance=guidance, source=source)
    elif call.steps > FEW_STEPS and names_distilled_model(model.id):
        source = "its name says that it is distilled, and not with how many steps"
        own = replace(own, steps=None, source=source)
    return own if own.reads_guidance else replace(own, guidance=None)


def names_distilled_model(name: str) -> bool:
    """Whether a file or model is called as those are that draw in few steps."""
    return DISTILLED_NAME.search(_last_part(name)) is not None


def _with_files(
    call: PipelineCall, pipeline: str, folder: Path, index: Config, denoiser: Config
) -> PipelineCall:
    """The call as this model takes it, which may have been trained to read no guidance."""
    is_fixed = index.get("is_distilled") is True and pipeline.startswith("Flux2Klein")
    if pipeline.startswith("Flux") and call.guided_above is None:
        embeds_by_default = pipeline.startswith("Flux2")
        is_fixed = bool(denoiser) and not denoiser.get("guidance_embeds", embeds_by_default)
    if is_fixed:
        return PipelineCall(call.steps)
    if pipeline == "HunyuanImagePipeline" and not denoiser.get("guidance_embeds"):
        guider = _read_config(folder, GUIDER_CONFIG).get("guidance_scale")
        return replace(call, guidance=guider if isinstance(guider, float) else GUIDER_DEFAULT)
    if pipeline == "HunyuanImagePipeline" or denoiser.get("time_cond_proj_dim") is not None:
        return replace(call, guided_above=None, takes_negative_prompt=False)
    return call


def _find_numbers(
    model: PipelineSettings, folder: Path, index: Config, denoiser: Config
) -> tuple[Numbers, str] | None:
    """Steps and guidance by name or by files, and where they are from."""
    if (name := _last_part(model.id)) in WELL_KNOWN:
        return WELL_KNOWN[name], f"model card of {name}"
    scheduler = _read_config(folder, SCHEDULER_CONFIG)
    for numbers, source in _iter_signs(index, denoiser, scheduler):
        return numbers, source
    for origin in (model.config, index.get("_name_or_path")):
        if (name := _last_part(str(origin))) in WELL_KNOWN:
            return WELL_KNOWN[name], f"model card of {name}, which it was made from"
    return None


def _iter_signs(
    index: Config, denoiser: Config, scheduler: Config
) -> Iterator[tuple[Numbers, str]]:
    """What the files of distilled models have, the surest first."""
    pipeline = str(index["_class_name"])
    if index.get("is_distilled") is True:
        numbers = (4, 1.0) if pipeline.startswith("Flux2Klein") else (8, 0.0)
        yield numbers, "is_distilled in model_index.json"
    if pipeline == "HunyuanImagePipeline" and denoiser.get("guidance_embeds"):
        yield (8, 3.25), "guidance_embeds in transformer/config.json"
    if pipeline == "FluxPipeline" and denoiser and not denoiser.get("guidance_embeds"):
        yield (4, 0.0), "transformer/config.json, without guidance_embeds"
    kind = scheduler.get("_class_name")
    if kind == "LCMScheduler" and pipeline != "LatentConsistencyModelPipeline":
        embeds = denoiser.get("time_cond_proj_dim") is not None
        yield (4, 8.0 if embeds else 1.0), "its LCMScheduler"
    if kind == "TCDScheduler":
        yield (4, 0.0), "its TCDScheduler"
    if pipeline in ("StableDiffusionPipeline", "StableDiffusionXLPipeline") and _is_few_step(
        scheduler
    ):
        yield (4, 0.0), f"its {kind} with trailing steps"


def _is_few_step(scheduler: Config) -> bool:
    """Whether it is a scheduler of Turbo or Lightning.

    Models of other predictions or without noise at the end also have trailing steps.
    """
    return (
        str(scheduler.get("_class_name")).startswith("Euler")
        and scheduler.get("timestep_spacing") == "trailing"
        and scheduler.get("prediction_type", "epsilon") == "epsilon"
        and not scheduler.get("rescale_betas_zero_snr")
    )


def _last_part(name: str) -> str:
    """The last part of a hub id, of a path, or of a snapshot in the hub's cache, in lower case."""
    path, found, _ = name.lower().rstrip("/").partition("/snapshots/")
    last = path.rpartition("--" if found else "/")[2].replace("_", "-")
    while (short := WEIGHTS_SUFFIX.sub("", last)) != last:
        last = short
    return last


def _read_config(folder: Path, name: str) -> Config:
    path = folder / name
    return read_json(path, str(path)) if path.is_file() else {}
