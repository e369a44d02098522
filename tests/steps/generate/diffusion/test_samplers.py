"""Samplers: diffusers' schedulers with the model's configuration."""

import copy
import inspect
from pathlib import Path

import diffusers
import pytest
import torch

from imagekiln.steps.generate.diffusion.variants import make_scheduler
from imagekiln.steps.job.samplers import SAMPLERS, SCHEDULERS
from imagekiln.steps.models.samplers import fitting_samplers
from tests import models

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


def test_every_sampler_but_the_models_own_has_a_scheduler() -> None:
    assert {*SAMPLERS} == {"default", *SCHEDULERS}


def test_diffusers_has_every_scheduler_and_takes_its_settings() -> None:
    for spec in SCHEDULERS.values():
        scheduler = getattr(diffusers, spec.class_name).from_config({}, **spec.config)
        assert {key: scheduler.config[key] for key in spec.config} == spec.config


ZERO_SNR = "rescale_betas_zero_snr"
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
CONFIGURATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False, "steps_offset": 1}),
    "v-prediction": ("DDIMScheduler", {"prediction_type": "v_prediction"}),
    "sdxl": ("EulerDiscreteScheduler", {"beta_schedule": "scaled_linear"}),
    "sample": ("EulerDiscreteScheduler", {"prediction_type": "sample"}),
    "exponential": ("EulerDiscreteScheduler", {"use_exponential_sigmas": True}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "sde": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "sana": ("DPMSolverMultistepScheduler", FLOW),
    "flow-unipc": ("UniPCMultistepScheduler", FLOW),
    "zero-snr": (
        "EulerDiscreteScheduler",
        {ZERO_SNR: True, "prediction_type": "v_prediction"},
    ),
    "flux": ("FlowMatchEulerDiscreteScheduler", {}),
    "flow-heun": ("FlowMatchHeunDiscreteScheduler", {}),
    "lcm": ("LCMScheduler", {}),
    "tcd": ("TCDScheduler", {}),
}


def _runs(own: models.Untyped, sampler: str) -> bool:
    """Whether a sampler makes four steps with the configuration of a model's own scheduler."""
    try:
        scheduler = copy.deepcopy(make_scheduler(own, sampler))
        if (
            own.config.get(ZERO_SNR)
            and ZERO_SNR not in inspect.signature(type(scheduler)).parameters
        ):
            return False  # it would draw as if nothing were said
        scheduler.set_timesteps(4)
        generator = torch.Generator().manual_seed(0)
        sample = torch.randn(1, 4, 8, 8, generator=generator)
        takes_generator = "generator" in inspect.signature(scheduler.step).parameters
        options = {"generator": generator} if takes_generator else {}
        for time in scheduler.timesteps:
            predicted = torch.randn(1, 4, 8, 8, generator=generator)
            sample = scheduler.step(predicted, time, sample, **options).prev_sample
    except (ValueError, NotImplementedError, ImportError):
        return False
    return bool(torch.isfinite(sample).all())


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_planning_accepts_the_samplers_that_run_with_a_models_scheduler(
    kind: str, tmp_path: Path
) -> None:
    name, config = CONFIGURATIONS[kind]
    own = getattr(diffusers, name)(**config)
    own.save_pretrained(tmp_path / "scheduler")
    fit = fitting_samplers(tmp_path, {})
    assert fit.scheduler == name
    assert fit.samplers == tuple(sampler for sampler in SAMPLERS if _runs(own, sampler))


def test_a_scheduler_that_nobody_knows_is_exchanged_for_no_other(tmp_path: Path) -> None:
    diffusers.AmusedScheduler(mask_token_id=31).save_pretrained(tmp_path / "scheduler")
    assert fitting_samplers(tmp_path, {}).samplers == ("default",)
