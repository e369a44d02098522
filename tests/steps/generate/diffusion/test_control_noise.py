"""The noise that control pictures are encoded with."""

import diffusers
import pytest
import torch

from imagekiln.steps.generate.diffusion.patches import per_image_control_noise
from tests import adapters, models


def _generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator("cpu").manual_seed(seed) for seed in seeds]


def _pipe() -> models.Untyped:
    return diffusers.AutoPipelineForText2Image.from_pipe(
        models.pipe("sd3"), controlnet=adapters.beside("sd3")
    )


@torch.no_grad()
def _encoded(pipe: models.Untyped, pictures: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = pipe.vae.encode(pictures).latent_dist.sample()
    return found


@pytest.mark.parametrize("halves", [1, 2])
def test_a_picture_is_encoded_the_same_in_every_slot_with_guidance_and_without(halves: int) -> None:
    pipe, pictures = _pipe(), torch.rand((2, 3, 16, 16), generator=torch.Generator().manual_seed(1))
    with per_image_control_noise(pipe, _generators(3, 4)):
        one = _encoded(pipe, pictures.repeat(halves, 1, 1, 1))
    with per_image_control_noise(pipe, _generators(4, 3)):
        other = _encoded(pipe, pictures.flip(0).repeat(halves, 1, 1, 1))
    assert torch.equal(one.reshape(halves, 2, -1), other.reshape(halves, 2, -1).flip(1))
    assert not torch.equal(one[0], one[1])


def test_the_vae_encodes_as_before_after_a_block_that_failed() -> None:
    pipe = _pipe()
    before = pipe.vae.encode
    with pytest.raises(KeyError), per_image_control_noise(pipe, _generators(1)):
        raise KeyError
    assert pipe.vae.encode == before


def test_a_pipeline_that_encodes_by_generators_itself_is_left_as_it_is() -> None:
    pipe = models.pipe("flux")
    before = pipe.vae.encode
    with per_image_control_noise(pipe, _generators(1)):
        assert pipe.vae.encode == before
