"""Samplers that fit a model, by the configuration of the scheduler that it comes with.

The scheduler of a sampler takes over that configuration. Planning imports no diffusers, so what its
classes accept is listed here; a test runs every sampler on every kind of configuration.
"""

from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.job.columns import SAMPLERS, SCHEDULERS
from imagekiln.steps.models.component_files import SCHEDULER_CONFIG, Config, read_config

# Schedulers that each take over the configuration of any other one.
EXCHANGEABLE_SCHEDULERS = {
    *("DDIMParallelScheduler", "DDIMScheduler", "DDPMParallelScheduler", "DDPMScheduler"),
    *("DEISMultistepScheduler", "DPMSolverMultistepScheduler", "DPMSolverSDEScheduler"),
    *("DPMSolverSinglestepScheduler", "EulerAncestralDiscreteScheduler", "EulerDiscreteScheduler"),
    *("HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler"),
    *("LMSDiscreteScheduler", "PNDMScheduler", "SASolverScheduler", "UniPCMultistepScheduler"),
}
# Schedulers whose configuration only they themselves read.
SOLITARY_SCHEDULERS = {
    *("EDMDPMSolverMultistepScheduler", "EDMEulerScheduler", "FlowMatchEulerDiscreteScheduler"),
    *("FlowMatchHeunDiscreteScheduler", "FlowMatchLCMScheduler", "LCMScheduler"),
    *("SCMScheduler", "TCDScheduler"),
}
# With Karras' noise levels, the equations of flow matching end in infinities.
FLOW_SAMPLERS = frozenset({"default", "deis", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_sde", "unipc"})
NOT_FOR_SAMPLE_PREDICTION = frozenset({"euler_a", "pndm"})


# Classes that do not read rescale_betas_zero_snr, and would draw as if nothing were said.
WITHOUT_ZERO_SNR = {
    *("DEISMultistepScheduler", "DPMSolverSDEScheduler", "DPMSolverSinglestepScheduler"),
    *("HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler"),
    *("LMSDiscreteScheduler", "PNDMScheduler", "SASolverScheduler"),
}


@dataclass(frozen=True, slots=True)
class SamplerFit:
    """The samplers that fit a model. `scheduler` is the class of its own; None if unknown."""

    samplers: tuple[str, ...] = SAMPLERS
    scheduler: str | None = None


def fitting_samplers(configuration: Path, changes: Config) -> SamplerFit:
    """The samplers for the model with this folder of configurations.

    `changes` are those that the model's own file states. All samplers fit if nothing names its
    scheduler. Raises BadInput, TryAgain.
    """
    config = read_config(configuration, SCHEDULER_CONFIG)
    if not config:
        return SamplerFit()
    config |= changes
    scheduler = str(config.get("_class_name"))
    if scheduler in SOLITARY_SCHEDULERS:
        fitting = {"default", *_samplers_of(scheduler)}
    elif scheduler in EXCHANGEABLE_SCHEDULERS:
        fitting = set(SAMPLERS) - {"flow_euler"} - _unfit_samplers(config)
    else:
        fitting = {"default"}  # whether another one draws with its configuration is not known
    samplers = tuple(sampler for sampler in SAMPLERS if sampler in fitting)
    return SamplerFit(samplers, scheduler)


def _samplers_of(scheduler: str) -> set[str]:
    return {name for name, spec in SCHEDULERS.items() if spec.class_name == scheduler}


def _unfit_samplers(config: Config) -> set[str]:
    """The samplers whose classes refuse something in the configuration of an exchangeable one."""
    unfit: set[str] = set()
    prediction = config.get("prediction_type")
    if prediction == "flow_prediction":
        unfit |= set(SAMPLERS) - FLOW_SAMPLERS
    if prediction == "sample":
        unfit |= NOT_FOR_SAMPLE_PREDICTION
    if config.get("rescale_betas_zero_snr"):
        classes = {name: spec.class_name for name, spec in SCHEDULERS.items()}
        classes["default"] = str(config.get("_class_name"))
        unfit |= {name for name, each in classes.items() if each in WITHOUT_ZERO_SNR}
    # A class takes one kind of noise levels only.
    if config.get("use_exponential_sigmas") or config.get("use_beta_sigmas"):
        unfit.add("dpmpp_2m_karras")
    if str(config.get("algorithm_type")).startswith("sde-"):
        unfit.add("deis")
    return unfit
