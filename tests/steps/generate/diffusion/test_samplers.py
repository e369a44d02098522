"""Samplers: diffusers' schedulers with the model's configuration."""

import diffusers
import pytest

from imagekiln.steps.job.samplers import SAMPLERS, SCHEDULERS
from tests import models

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


def test_every_sampler_but_the_models_own_has_a_scheduler() -> None:
    assert {*SAMPLERS} == {"default", *SCHEDULERS}


def test_diffusers_has_every_scheduler_and_takes_its_settings() -> None:
    for spec in SCHEDULERS.values():
        scheduler = getattr(diffusers, spec.class_name).from_config({}, **spec.config)
        assert {key: scheduler.config[key] for key in spec.config} == spec.config
