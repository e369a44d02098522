"""Decoding with as little memory as there is."""

import numpy as np
import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.vae import (
    MAX_DECODE_IMAGES,
    DecodeMode,
    MiddleAttention,
    PlannedSize,
    VaeDecoder,
)
from imagekiln.steps.runs.image import ImageRow
from tests import models, plain
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

SIDE = 32
LATENTS = SIDE // 2


def _pipe(room: int | None = None) -> models.Untyped:
    """A pipeline whose decoder has room for so many latent pixels at once."""
    pipe = models.pipe("sd")
    pipe.vae.tile_latent_min_size, pipe.vae.tile_sample_min_size = LATENTS // 2, SIDE // 2
    decode = pipe.vae.decoder.forward

    def narrow(latents: torch.Tensor, *more: object) -> object:
        if room is not None and latents[:, 0].numel() > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return decode(latents, *more)

    pipe.vae.decoder.forward = narrow
    return pipe


def _rows() -> list[ImageRow]:
    return [
        image_row(f"a red circle {place}", place, width=SIDE, height=SIDE) for place in range(4)
    ]


def _drawn(denoiser: Denoiser) -> list[models.Untyped]:
    return [picture.rgb for picture in denoiser.draw(_rows(), 4, lambda: None)]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("room", "way"),
    [
        (None, "whole"),
        (MAX_DECODE_IMAGES * LATENTS**2, "whole"),
        (LATENTS**2, "tiles"),
        (LATENTS**2 // 4, "tiles"),
    ],
)
def test_memory_decides_how_a_batch_is_decoded_and_the_batch_stays_whole(
    room: int | None, way: DecodeMode, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = _pipe(room)
    denoiser = Denoiser(pipe)
    seen = list[int]()
    pipe.unet.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    drawn = _drawn(denoiser)
    assert denoiser.vae_decoder.mode == way
    assert seen == [8, 8]  # two steps, with and without the prompt, and neither of them again
    assert ("from here on in" in caplog.text) == (way != "whole")
    if room is None or room >= LATENTS**2:  # else tiles have seams
        whole = _drawn(Denoiser(_pipe()))
        assert (
            max(
                np.abs(one.astype(int) - other).max()
                for one, other in zip(drawn, whole, strict=True)
            )
            <= 1
        )


def test_a_way_that_is_named_is_taken_from_the_start() -> None:
    pipe = models.pipe("sd")
    assert VaeDecoder(pipe, "tiles").mode == "tiles"
    assert (pipe.vae.use_slicing, pipe.vae.use_tiling) == (True, True)


def test_a_way_that_the_vae_does_not_know_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"speed\.vae is 'tiles', which this model's VAE does not know\. Write auto"
    ):
        VaeDecoder(plain.pipe("amused"), "tiles")


def _decoded(vae: models.Untyped, latents: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        images: torch.Tensor = vae.decode(latents, return_dict=False)[0]
    return images


def _noise(count: int, seed: int = 0, channels: int = 4) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn((count, channels, LATENTS, LATENTS), generator=generator)


def _planned(images: int) -> PlannedSize:
    """The plan of batches of so many images, if they are of the size that these tests decode."""

    def planned_size(width: int, height: int) -> int:
        assert (width, height) == (SIDE, SIDE)
        return images

    return planned_size


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("kind", "batch_size"),
    [("sd", 1), ("sd", 3), ("sd", 16), ("sdxl", 16), ("sd3", 16), ("flux", 16)],
)
def test_an_image_decodes_to_the_same_bytes_in_a_batch_of_any_size_up_to_the_planned_one(
    kind: models.Kind, batch_size: int
) -> None:
    vae = models.pipe(kind).vae
    pipe = models.pipe(kind)
    VaeDecoder(pipe, "auto", _planned(batch_size))
    latents = _noise(batch_size, channels=vae.config.latent_channels)
    images = _decoded(pipe.vae, latents)
    for count in range(1, len(latents)):
        assert torch.equal(_decoded(pipe.vae, latents[:count]), images[:count])
        assert torch.equal(_decoded(pipe.vae, latents[-count:]), images[-count:])
    assert torch.allclose(images, _decoded(vae, latents), atol=1e-5)


def test_attention_by_matrix_products_changes_no_color_by_more_than_its_rounding() -> None:
    fused = _drawn(Denoiser(models.pipe("sd")))
    pipe = models.pipe("sd")
    pipe.vae.set_attn_processor(MiddleAttention())
    pairs = zip(fused, _drawn(Denoiser(pipe)), strict=True)
    assert max(np.abs(one.astype(int) - other).max() for one, other in pairs) <= 1
