"""An image's bytes are its own, whatever its denoiser drew before.

These are the quick cases; `tests/slow/test_history.py` has every family and every pair.
"""

from pathlib import Path

import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.job.execution import SpeedSettings
from tests import histories, models
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(each) for each in (models.DIFFUSERS_WARNS, models.FLUX_WARNS)
]


def test_an_image_has_the_same_bytes_after_any_sampler_as_alone(tmp_path: Path) -> None:
    model = histories.plan_model(tmp_path, "sd")
    variants = histories.sampler_variants(model)
    assert histories.changed_by_history(model, variants, all_pairs=False) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("sd", "float32"),
        pytest.param("sdxl", "float32", marks=pytest.mark.slow),
        # encodes and decodes in float32
        pytest.param("sdxl", "float16", marks=pytest.mark.slow),
        pytest.param("sd3", "float32", marks=pytest.mark.slow),
        ("sd3-control", "float32"),
        pytest.param("flux", "float32", marks=pytest.mark.slow),
    ],
)
def test_an_image_has_the_same_bytes_after_any_other_setting_as_alone(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    model = histories.plan_model(tmp_path, kind, dtype)
    variants = histories.quick_variants(model)
    assert histories.changed_by_history(model, variants, all_pairs=False) == []


@pytest.mark.slow
def test_an_image_has_the_same_bytes_after_batches_that_ran_out_of_memory_as_alone(
    tmp_path: Path,
) -> None:
    model = histories.plan_model(tmp_path, "sd")
    samplers = ("pndm", "heun", "dpmpp_sde", "unipc")
    variants = {
        **histories.quick_variants(model),
        **{sampler: model.row(sampler=sampler) for sampler in samplers},
    }
    changed = histories.changed_by_history(model, variants, interrupted=True, all_pairs=False)
    assert changed == []


@pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning")
def test_a_half_precision_sdxl_draws_the_same_after_every_failed_call() -> None:
    """Wherever a call fails: at any step, or when the latents are decoded in float32."""
    pipe = models.pipe("sdxl").to(torch.float16)
    denoiser = Denoiser(pipe, SpeedSettings(vae="whole"))
    row = image_row()
    alone = bytes_of(denoiser, [row], 1)

    for network in (pipe.unet, pipe.vae.decoder, pipe.vae.post_quant_conv):
        forward = network.forward
        network.forward = _run_out_of_memory
        with pytest.raises(torch.OutOfMemoryError):
            denoiser.draw([row], 1, lambda: None)
        network.forward = forward
        assert bytes_of(denoiser, [row], 1) == alone, type(network).__name__


def _run_out_of_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
