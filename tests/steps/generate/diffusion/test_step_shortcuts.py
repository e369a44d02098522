"""Steps without the negative prompts, and steps that are extrapolated: which, and to the byte."""

import json
from collections.abc import Sequence

import diffusers
import pytest
import torch
from diffusers.callbacks import SDXLCFGCutoffCallback
from diffusers.models.cache_utils import CacheMixin

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.step_shortcuts import step_shortcuts
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.models.families import family_of, known_call_of
from imagekiln.steps.runs.image import ImageRow
from tests import families, models
from tests.drawing import bytes_of
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

LIMITED = [
    *("aura-flow", "chroma", "cogview4", "klein", "lumina2", "pixart-alpha", "pixart-sigma"),
    *("qwen-image", "sana", "sd", "sd3", "sdxl"),
]
CACHED = [
    *("chroma", "cogview4", "flux", "flux2", "hunyuan-image", "klein", "ovis", "qwen-image"),
]
MIDDLE: dict[str, object] = {"guidance_interval": [0.25, 0.75]}
EVERY_THIRD: dict[str, object] = {"step_cache": {"interval": 3}}


def _rows(kind: str, count: int = 1, **settings: object) -> list[ImageRow]:
    side = families.SIDES.get(kind, models.SIDE)
    plain = {"width": side, "height": side, "steps": 4, "negative_prompt": "a star"}
    return [
        image_row(f"a red circle {place}", place, **{**plain, **settings}) for place in range(count)
    ]


def _denoiser(kind: str, **speed: object) -> Denoiser:
    return Denoiser(families.pipe(kind), SpeedSettings.model_validate(speed))


def _drawn(kind: str, rows: Sequence[ImageRow], **speed: object) -> list[bytes]:
    return bytes_of(_denoiser(kind, **speed), rows, len(rows))


def _counted_rows(network: models.Untyped) -> list[int]:
    """How many rows a network runs at each call, to be read once it has run."""
    rows: list[int] = []
    forward = network.forward

    def count(*args: models.Untyped, **kwargs: models.Untyped) -> models.Untyped:
        rows.append(len(args[0] if args else kwargs["hidden_states"]))
        return forward(*args, **kwargs)

    network.forward = count
    return rows


@pytest.mark.parametrize("kind", sorted(families.MAKE))
def test_each_family_takes_the_shortcuts_that_its_pipeline_allows(kind: str) -> None:
    pipe = families.pipe(kind)
    family = family_of(type(pipe).__name__)
    assert family.limits_guidance == (kind in LIMITED)
    assert family.caches_steps == (kind in CACHED)
    assert family.caches_steps == isinstance(denoiser_network(pipe), CacheMixin)
    if family.limits_guidance:
        assert known_call_of(type(pipe).__name__).guided_above is not None


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", LIMITED)
def test_outside_the_interval_the_denoiser_does_not_see_the_negative_prompts(kind: str) -> None:
    pipe = families.pipe(kind)
    counted = _counted_rows(denoiser_network(pipe))
    bytes_of(Denoiser(pipe, SpeedSettings.model_validate(MIDDLE)), _rows(kind), 1)
    halves, calls = [1, 2, 2, 1], [1, 1, 1, 1, 1, 1]
    assert counted in (halves, calls)


def test_guidance_that_ends_early_draws_what_diffusers_own_callback_draws() -> None:
    (row,) = _rows("sdxl")
    pipe = families.pipe("sdxl")
    cutoff = SDXLCFGCutoffCallback(cutoff_step_ratio=None, cutoff_step_index=1)
    generator = torch.Generator("cpu").manual_seed(row.parameters.seed)
    output = pipe(
        row.parameters.prompt,
        negative_prompt=row.parameters.negative_prompt,
        width=row.parameters.width,
        height=row.parameters.height,
        num_inference_steps=row.parameters.steps,
        guidance_scale=row.parameters.guidance,
        generator=[generator],
        callback_on_step_end=cutoff,
        callback_on_step_end_tensor_inputs=cutoff.tensor_inputs,
    )
    assert _drawn("sdxl", [row], guidance_interval=[0, 0.5]) == [output.images[0].tobytes()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extrapolated_steps_are_those_of_diffusers_own_cache(dtype: str) -> None:
    theirs, ours = (families.pipe("flux", getattr(torch, dtype)) for _ in range(2))
    cache = diffusers.TaylorSeerCacheConfig(
        cache_interval=3, use_lite_mode=True, taylor_factors_dtype=torch.float32
    )
    theirs.transformer.enable_cache(cache)

    def draw(pipe: models.Untyped) -> torch.Tensor:
        output = pipe(
            "a red circle",
            width=models.SIDE,
            height=models.SIDE,
            num_inference_steps=12,
            generator=torch.Generator().manual_seed(7),
            output_type="latent",
        )
        latents: torch.Tensor = output.images
        return latents

    expected = draw(theirs)
    with step_shortcuts(ours, SpeedSettings.model_validate(EVERY_THIRD), 1):
        drawn = draw(ours)
    if dtype == "float32":
        assert torch.equal(drawn, expected)
    else:  # theirs are rounded to bfloat16 on the way
        assert (drawn - expected).abs().max() < 0.1


PAIRS = [
    *((kind, MIDDLE) for kind in ("sd", "sdxl", "sd3", "pixart-sigma", "klein")),
    *((kind, EVERY_THIRD) for kind in ("flux", "flux2", "chroma")),
    *((kind, MIDDLE | EVERY_THIRD) for kind in ("klein", "qwen-image")),
]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("kind", "speed"), PAIRS, ids=json.dumps)
def test_an_image_is_the_same_alone_first_and_last(
    kind: str, speed: dict[str, object], size: int
) -> None:
    first, *others = _rows(kind, size, steps=8)
    denoiser = _denoiser(kind, **speed)
    (alone,) = bytes_of(denoiser, [first], size)
    assert bytes_of(denoiser, [first, *others], size)[0] == alone
    assert bytes_of(denoiser, [*others, first], size)[-1] == alone
    assert len({*bytes_of(denoiser, [first, *others], size)}) == size
