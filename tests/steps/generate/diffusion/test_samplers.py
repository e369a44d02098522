"""Samplers: diffusers' schedulers with the model's configuration, whatever ran before."""

from collections.abc import Sequence
from itertools import pairwise, permutations

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

    def new_denoiser() -> Denoiser:
        pipe.scheduler = own_scheduler
        return Denoiser(pipe, SpeedSettings(vae="whole"))

    def draw(denoiser: Denoiser, sampler: str) -> bytes:
        (image,) = bytes_of(
            denoiser, [image_row(sampler=sampler, steps=4)], 1
        )  # fewer than 4 are too few for PNDM
        return image

    alone = {sampler: draw(new_denoiser(), sampler) for sampler in DIFFUSION_SAMPLERS}
    for sequence in _sequences_of_all_pairs(DIFFUSION_SAMPLERS):
        denoiser = new_denoiser()
        drawn = {sampler: draw(denoiser, sampler) for sampler in sequence}
        changed = [sampler for sampler in sequence if drawn[sampler] != alone[sampler]]
        assert changed == [], sequence


def _sequences_of_all_pairs(samplers: Sequence[str]) -> list[list[str]]:
    """Orders of an even number of samplers in which each follows each other directly once.

    Williams' design: 0, 1, n-1, 2, n-2, ... and the same shifted by 1 to n-1.
    """
    count = len(samplers)
    zigzag = [(index + 1) // 2 * (1 if index % 2 else -1) for index in range(count)]
    sequences = [
        [samplers[(position + shift) % count] for position in zigzag] for shift in range(count)
    ]
    pairs = [pair for sequence in sequences for pair in pairwise(sequence)]
    assert sorted(pairs) == sorted(permutations(samplers, 2))
    return sequences
