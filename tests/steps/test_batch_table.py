import pytest

from imagekiln.steps.batch_table import GPUS, MODELS, images, power_of_two
from imagekiln.steps.cost import FORWARDS

H100 = "NVIDIA H100 80GB HBM3"
SDXL = "stabilityai/stable-diffusion-xl-base-1.0"
FLUX = "black-forest-labs/FLUX.1-dev"
QWEN = "Qwen/Qwen-Image"


def _images(model: str, gpu: str = H100, side: int = 1024, dtype: str = "bfloat16", *, guided: bool = False) -> int:
    found = images(model, dtype, gpu, side * side, guided=guided)
    assert found is not None
    return found


def test_a_batch_ends_where_the_device_is_saturated() -> None:
    assert _images(FLUX) == 2
    assert _images(QWEN, guided=True) == 1
    assert _images(FLUX, side=512) == 8
    assert _images(SDXL, guided=True) == 4
    assert _images("stable-diffusion-v1-5/stable-diffusion-v1-5", side=512, guided=True) == 4


def test_guidance_halves_the_batch_that_saturates() -> None:
    assert _images(SDXL, guided=True) == _images(SDXL) / 2


def test_memory_may_hold_less() -> None:
    assert _images(SDXL, "Tesla T4", guided=True) == 2
    assert _images(SDXL, "Tesla T4", dtype="float32", guided=True) == 1
    assert _images(QWEN, "NVIDIA L4") == 1


def test_a_slice_has_memory_of_its_own() -> None:
    assert _images(SDXL, f"{H100} MIG 1g.10gb", guided=True) == 1
    assert _images(SDXL, f"{H100} MIG 3g.40gb", guided=True) == 4


@pytest.mark.parametrize(("model", "gpu"), [("a/b", H100), (SDXL, "a GPU"), (SDXL, "cpu")])
def test_what_nobody_knows_has_no_batch(model: str, gpu: str) -> None:
    assert images(model, "bfloat16", gpu, 1024 * 1024, guided=True) is None


def test_every_model_has_a_power_of_two_on_every_gpu() -> None:
    found = {_images(model, gpu, side, guided=True) for model in MODELS for gpu in GPUS for side in (64, 512, 1024)}
    assert found <= {1 << power for power in range(9)}


def test_the_models_are_those_whose_time_is_known() -> None:
    assert MODELS.keys() == FORWARDS.keys()


@pytest.mark.parametrize(("most", "power"), [(-3, 1), (0, 1), (0.7, 1), (1, 1), (3.9, 2), (4, 4), (1000, 512)])
def test_power_of_two_is_the_largest_up_to_a_number(most: float, power: int) -> None:
    assert power_of_two(most) == power
