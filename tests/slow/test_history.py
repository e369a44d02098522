"""An image's bytes are its own, whatever its denoiser drew before: every family and every pair."""

from pathlib import Path

import pytest

from imagekiln.steps.job.samplers import SAMPLERS
from tests import families, histories, models, plain, shard_histories

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings(models.FLUX_WARNS),
]
KINDS = [*families.MAKE, "sd3-control", *plain.MAKE, *histories.OWN_SCHEDULERS]


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_has_the_same_bytes_after_any_other_as_alone(kind: str, tmp_path: Path) -> None:
    model = histories.plan_model(tmp_path, kind)
    assert histories.changed_by_history(model, histories.all_variants(model)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_has_the_same_bytes_after_any_other_that_ran_out_of_memory_as_alone(
    kind: str, tmp_path: Path
) -> None:
    model = histories.plan_model(tmp_path, kind)
    variants = {**histories.quick_variants(model), **histories.sampler_variants(model)}
    assert histories.changed_by_history(model, variants, interrupted=True) == []


@pytest.mark.parametrize("kind", ["sd", "sd with euler", "sd with pndm", "sd with dpmpp_sde"])
def test_what_is_made_on_first_use_does_not_depend_on_the_image_before_it(
    kind: str, tmp_path: Path
) -> None:
    model = histories.plan_model(tmp_path, kind)
    fitting = [sampler for sampler in SAMPLERS if sampler != "flow_euler"]
    variants = histories.sampler_and_image_variants(model, fitting)
    variants = {name: row for name, row in variants.items() if not name.endswith("odd steps")}
    assert histories.changed_in_new_denoisers(model, variants) == []


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "sd3-control", "flux"])
def test_what_is_loaded_on_first_use_does_not_depend_on_the_image_before_it(
    kind: str, tmp_path: Path
) -> None:
    model = histories.plan_model(tmp_path, kind)
    assert histories.changed_in_new_denoisers(model, histories.quick_variants(model)) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux"])
def test_an_image_has_the_same_bytes_after_any_other_in_half_precision(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    model = histories.plan_model(tmp_path, kind, dtype)
    variants = histories.quick_variants(model)
    assert histories.changed_by_history(model, variants, interrupted=True) == []


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux"])
def test_an_image_has_the_same_bytes_in_any_shard_whatever_fails_in_it(
    kind: str, tmp_path: Path
) -> None:
    model = histories.plan_model(tmp_path, kind)
    shard_histories.check_random_histories(model, examples=40)
