"""Default steps and guidance of a model, how it reads guidance, and the samplers that fit it.

Steps and guidance come from the first of these that states them: the name of a well-known model,
its files, the name of the model that it was made from, and the defaults of its pipeline's call.

The scheduler of a sampler takes over the configuration of the model's own scheduler. Planning does
not import diffusers, so this module lists what its classes accept; a test runs every sampler on
every kind of configuration.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imagekiln.steps.job.columns import SAMPLERS, SCHEDULERS
from imagekiln.steps.job.fields import PipelineSettings
from imagekiln.steps.models.component_files import SCHEDULER_CONFIG, Config, read_config
from imagekiln.steps.models.families import UNKNOWN_CALL, CallSignature, known_call_of

GUIDER_CONFIG = "guider/guider_config.json"
GUIDER_DEFAULT = 3.5  # in diffusers' AdaptiveProjectedMixGuidance
WEIGHTS_SUFFIX = re.compile(r"(\.safetensors|-(bf16|fp16|fp8|diffusers))$")
FEW_STEPS = 12  # a call with at most this default is for distilled models
DISTILLED_NAME = re.compile(
    r"turbo|lightning|schnell|distill|(^|-)(lcm|hyper|flash|dmd2?|pcm|tcd|\d+-?steps?)(-|$)"
)
NO_GUIDANCE = 1.0  # up to here, a guidance means none for models that read none
Numbers = tuple[int, float]

# For models whose model_index.json says that they are distilled.
DISTILLED: Mapping[str, Numbers] = {
    "Flux2KleinPipeline": (4, 1.0),
    "Flux2KleinKVPipeline": (4, 1.0),
    "Krea2Pipeline": (8, 0.0),
}
# By pipeline, and by whether the denoiser reads guidance as a number.
GUIDANCE_EMBEDS: Mapping[tuple[str, bool | None], Numbers] = {
    ("FluxPipeline", False): (4, 0.0),
    ("HunyuanImagePipeline", True): (8, 3.25),
}
# Steps and guidance of models that need others than their pipeline's defaults, by the last part of
# their names. The source is the model card, or the comment.
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
    "z-image-turbo": (8, 0.0),  # 9 before diffusers 0.39, which counted an idle step
}


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The steps and guidance of a model, their source, and how its pipeline is called.

    `steps` is None if they are not known, as `source` explains. `guidance` is None if the model
    reads none or has its own schedule.
    """

    steps: int | None
    guidance: float | None
    source: str
    call: CallSignature = UNKNOWN_CALL

    @property
    def reads_guidance(self) -> bool:
        """Return whether the job's guidance has an effect."""
        return self.call.guidance_argument is not None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Facts in a model's configurations that decide how it is called.

    `embeds_guidance`: the denoiser reads guidance as a number; None if unknown.
    `embeds_scale`: it reads guidance as latent consistency models do.
    """

    pipeline: str
    origin: str
    is_distilled: bool
    embeds_guidance: bool | None
    embeds_scale: bool
    scheduler: Config
    guider: Config


def read_own_settings(
    model: PipelineSettings, folder: Path, index: Config, denoiser: Config
) -> OwnSettings:
    """Find the settings of a model by its files in `folder`. Raises BadInput, TryAgain."""
    files = ModelFiles(
        pipeline=str(index["_class_name"]),
        origin=str(index.get("_name_or_path")),
        is_distilled=bool(index.get("is_distilled")),
        embeds_guidance=bool(denoiser.get("guidance_embeds")) if denoiser else None,
        embeds_scale=denoiser.get("time_cond_proj_dim") is not None,
        scheduler=read_config(folder, SCHEDULER_CONFIG),
        guider=read_config(folder, GUIDER_CONFIG),
    )
    call = _call_of(files)
    own = OwnSettings(call.steps, call.guidance, f"defaults of {files.pipeline}", call)
    for (steps, number), source in _iter_numbers(model, files):
        guidance = number if own.reads_guidance else None
        return replace(own, steps=steps, guidance=guidance, source=source)
    if call.steps > FEW_STEPS and (files.is_distilled or names_distilled_model(model.id)):
        source = "it is distilled by its name or files, which do not say with how many steps"
    elif files.pipeline.startswith("StableDiffusion") and _may_be_few_step(files.scheduler):
        source = "its Euler scheduler with trailing steps may be that of a model for few steps"
    elif not call.steps:
        source = f"{files.pipeline} is not known to this version"
    else:
        return own
    return replace(own, steps=None, source=source)


def names_distilled_model(name: str) -> bool:
    """Return whether the name of a file or model is typical of few-step models."""
    return DISTILLED_NAME.search(_last_part(name)) is not None


def _call_of(files: ModelFiles) -> CallSignature:
    """Return the pipeline's call, without guidance if this model was trained to read none."""
    call = known_call_of(files.pipeline)
    is_flux = files.pipeline in ("FluxPipeline", "FluxKontextPipeline")
    is_klein = files.pipeline.startswith("Flux2Klein")
    is_hunyuan = files.pipeline == "HunyuanImagePipeline"
    if (is_flux and files.embeds_guidance is False) or (is_klein and files.is_distilled):
        return CallSignature(call.steps)
    if is_hunyuan and not files.embeds_guidance:
        guidance = files.guider.get("guidance_scale", GUIDER_DEFAULT)
        return replace(call, guidance=guidance if isinstance(guidance, float) else GUIDER_DEFAULT)
    if is_hunyuan or files.embeds_scale:
        return replace(call, guided_above=None, takes_negative_prompt=False)
    return call


def _iter_numbers(model: PipelineSettings, files: ModelFiles) -> Iterator[tuple[Numbers, str]]:
    """Yield steps and guidance by name or files, with their source, the most certain first."""
    pipeline = files.pipeline
    if (name := _last_part(model.id)) in WELL_KNOWN:
        yield WELL_KNOWN[name], f"model card of {name}"
    if files.is_distilled and pipeline in DISTILLED:
        yield DISTILLED[pipeline], "is_distilled in model_index.json"
    if (key := (pipeline, files.embeds_guidance)) in GUIDANCE_EMBEDS:
        yield GUIDANCE_EMBEDS[key], "guidance_embeds in transformer/config.json"
    scheduler = files.scheduler.get("_class_name")
    if scheduler == "LCMScheduler" and pipeline != "LatentConsistencyModelPipeline":
        guidance = 8.0 if files.embeds_scale else 1.0
        yield (4, guidance), "its LCMScheduler"
    if scheduler == "TCDScheduler":
        yield (4, 0.0), "its TCDScheduler"
    for origin in (str(model.config), files.origin):
        if (name := _last_part(origin)) in WELL_KNOWN:
            yield WELL_KNOWN[name], f"model card of {name}, which it was made from"


def _may_be_few_step(scheduler: Config) -> bool:
    """Return whether a scheduler's configuration is like those of Turbo and Lightning models.

    Models with other prediction types or zero terminal SNR also have trailing steps.
    """
    return (
        str(scheduler.get("_class_name")).startswith("Euler")
        and scheduler.get("timestep_spacing") == "trailing"
        and scheduler.get("prediction_type", "epsilon") == "epsilon"
        and not scheduler.get("rescale_betas_zero_snr")
    )


def _last_part(name: str) -> str:
    """Return the last part of a hub id, path, or snapshot in the hub's cache, in lower case."""
    path, found, _ = name.lower().rstrip("/").partition("/snapshots/")
    last = path.rpartition("--" if found else "/")[2].replace("_", "-")
    while (short := WEIGHTS_SUFFIX.sub("", last)) != last:
        last = short
    return last


# Schedulers that can each take over the configuration of any other.
EXCHANGEABLE_SCHEDULERS = {
    *("DDIMParallelScheduler", "DDIMScheduler", "DDPMParallelScheduler", "DDPMScheduler"),
    *("DEISMultistepScheduler", "DPMSolverMultistepScheduler", "DPMSolverSDEScheduler"),
    *("DPMSolverSinglestepScheduler", "EulerAncestralDiscreteScheduler", "EulerDiscreteScheduler"),
    *("HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler"),
    *("LMSDiscreteScheduler", "PNDMScheduler", "SASolverScheduler", "UniPCMultistepScheduler"),
}
# With Karras' noise levels, flow matching yields infinite values.
FLOW_SAMPLERS = frozenset({"default", "deis", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_sde", "unipc"})
# Classes that silently ignore rescale_betas_zero_snr.
WITHOUT_ZERO_SNR = {
    *("DEISMultistepScheduler", "DPMSolverSDEScheduler", "DPMSolverSinglestepScheduler"),
    *("HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler"),
    *("LMSDiscreteScheduler", "PNDMScheduler", "SASolverScheduler"),
}


@dataclass(frozen=True, slots=True)
class SamplerFit:
    """The samplers that fit a model. `scheduler` is its own scheduler's class; None if unknown."""

    samplers: tuple[str, ...] = SAMPLERS
    scheduler: str | None = None


def fitting_samplers(configuration: Path, changes: Config) -> SamplerFit:
    """Find the samplers that fit the model with this folder of configurations.

    `changes` to the scheduler's configuration come from a single-file model. All samplers fit if
    the scheduler is not known. Raises BadInput, TryAgain.
    """
    config = read_config(configuration, SCHEDULER_CONFIG)
    if not config:
        return SamplerFit()
    config |= changes
    scheduler = str(config.get("_class_name"))
    fitting = {"default", *_samplers_of(scheduler)}  # its configuration may fit no other
    if scheduler in EXCHANGEABLE_SCHEDULERS:
        fitting = set(SAMPLERS) - {"flow_euler"} - _unfit_samplers(config)
    samplers = tuple(sampler for sampler in SAMPLERS if sampler in fitting)
    return SamplerFit(samplers, scheduler)


def _samplers_of(scheduler: str) -> set[str]:
    return {name for name, spec in SCHEDULERS.items() if spec.class_name == scheduler}


def _unfit_samplers(config: Config) -> set[str]:
    """Return the samplers whose classes refuse a configuration of an exchangeable scheduler."""
    unfit: set[str] = set()
    if config.get("prediction_type") == "flow_prediction":
        unfit |= set(SAMPLERS) - FLOW_SAMPLERS
    if config.get("rescale_betas_zero_snr"):
        unfit |= {name for scheduler in WITHOUT_ZERO_SNR for name in _samplers_of(scheduler)}
        if config.get("_class_name") in WITHOUT_ZERO_SNR:
            unfit.add("default")
    return unfit
