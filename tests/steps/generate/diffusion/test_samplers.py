"""Samplers: diffusers' schedulers with the model's configuration, whatever ran before."""

from itertools import permutations

import diffusers
import pytest

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.job.samplers import SAMPLERS, SCHEDULERS
from imagekiln.steps.job.speed import SpeedSettings
from tests import models
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)
DIFFUSION_SAMPLERS = tuple(name for name in SAMPLERS if name != "flow_euler")


def test_every_sampler_but_the_models_own_has_a_scheduler() -> None:
    assert {*SAMPLERS} == {"default", *SCHEDULERS}


def test_diffusers_has_every_scheduler_and_takes_its_settings() -> None:
    for spec in SCHEDULERS.values():
        scheduler = getattr(diffusers, spec.class_name).from_config({}, **spec.config)
        assert {key: scheduler.config[key] for key in spec.config} == spec.config


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_an_image_has_the_same_bytes_after_any_other_sampler_as_alone(kind: models.Kind) -> None:
    pipe = models.pipe(kind)
    own_scheduler = pipe.scheduler

    def last_image(*samplers: str) -> bytes:
        """Draw an image by each sampler in turn, on a model that has drawn none before."""
        pipe.scheduler = own_scheduler
        denoiser = Denoiser(pipe, SpeedSettings(vae="whole"))
        images = [bytes_of(denoiser, [image_row(sampler=name, steps=4)], 1) for name in samplers]
        return images[-1][0]

    alone = {name: last_image(name) for name in DIFFUSION_SAMPLERS}
    changed = [
        (first, second)
        for first, second in permutations(DIFFUSION_SAMPLERS, 2)
        if last_image(first, second) != alone[second]
    ]
    assert changed == []
