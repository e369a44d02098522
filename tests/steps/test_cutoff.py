"""Guidance that ends early: the same images as by diffusers' own callbacks, whoever the neighbours are."""

import diffusers
import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers.callbacks import SD3CFGCutoffCallback, SDCFGCutoffCallback, SDXLCFGCutoffCallback

from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.families import FAMILIES, family
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.speed import Speed
from tests import families, models
from tests.drawing import pixels_of
from tests.models import SIDE
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

RGB = npt.NDArray[np.uint8]
THEIRS = {"sd": SDCFGCutoffCallback, "sdxl": SDXLCFGCutoffCallback, "sd3": SD3CFGCutoffCallback}
KINDS = ["chroma", "cogview4", "kandinsky3", "klein", "lumina2", "sd", "sd3", "sdxl", "z-image"]
HALF = Speed(guidance_until=0.5)


def _rows(kind: str, count: int, **settings: object) -> list[ImageRow]:
    side = families.SIDES.get(kind, SIDE)
    plain = {"steps": 4, "width": side, "height": side, "negative_prompt": "a yellow star"}
    return [image_row(f"a red circle {place}", place, **plain | settings) for place in range(count)]


def _counted(pipe: models.Untyped) -> list[int]:
    """How many images the denoiser sees at each of its calls from now on."""
    seen = list[int]()

    def note(_: object, places: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        seen.append(len(places[0] if places else named["hidden_states"]))

    (getattr(pipe, "transformer", None) or pipe.unet).register_forward_pre_hook(note, with_kwargs=True)
    return seen


def test_the_table_names_every_family_in_which_guidance_can_end() -> None:
    assert {type(families.pipe(kind)).__name__ for kind in KINDS} == {
        name for name, each in FAMILIES.items() if each.halved is not None
    }


@pytest.mark.parametrize("kind", KINDS)
def test_after_its_share_of_the_steps_the_negative_prompt_is_no_longer_computed(kind: str) -> None:
    pipe, whole = families.pipe(kind), families.pipe(kind)
    cut, all_steps = _counted(pipe), _counted(whole)
    rows = _rows(kind, 2)
    drawn, before = pixels_of(Denoiser(pipe, HALF), rows, 2), pixels_of(Denoiser(whole), rows, 2)
    assert sum(cut) == 0.75 * sum(all_steps)  # two steps of four cost half
    assert not any(map(np.array_equal, drawn, before))


@pytest.mark.parametrize(("size", "wide"), [(2, 1), (4, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_depends_on_neither_its_place_nor_its_neighbours(kind: str, size: int, wide: int) -> None:
    denoiser = Denoiser(families.pipe(kind), HALF)
    first, *others = _rows(kind, size, width=wide * families.SIDES.get(kind, SIDE))
    alone = pixels_of(denoiser, [first], size)[0]
    assert alone.std() > 1
    assert np.array_equal(pixels_of(denoiser, [first, *others], size)[0], alone)
    assert np.array_equal(pixels_of(denoiser, [*others, first], size)[-1], alone)


@pytest.mark.parametrize("kind", sorted(THEIRS))
def test_an_image_is_that_of_diffusers_own_callback(kind: str) -> None:
    pipe, (row,) = families.pipe(kind), _rows(kind, 1)
    ours = pixels_of(Denoiser(pipe, HALF), [row], 1)[0]
    theirs = pipe(
        row.pixels.prompt,
        negative_prompt=row.pixels.negative_prompt,
        generator=[torch.Generator("cpu").manual_seed(row.pixels.seed)],
        width=row.pixels.width,
        height=row.pixels.height,
        num_inference_steps=row.pixels.steps,
        guidance_scale=row.pixels.guidance,
        callback_on_step_end=THEIRS[kind](cutoff_step_ratio=None, cutoff_step_index=1),  # after the second step
    )
    assert np.array_equal(ours, np.asarray(theirs.images[0]))


@pytest.mark.parametrize(("until", "steps", "guided"), [(0.5, 5, 2), (0.1, 4, 1), (0.9, 4, 4), (0.07, 100, 7)])
def test_the_share_is_rounded_to_steps_and_the_first_always_has_guidance(until: float, steps: int, guided: int) -> None:
    pipe = models.pipe("sd")
    seen = _counted(pipe)
    pixels_of(Denoiser(pipe, Speed(guidance_until=until)), _rows("sd", 1, steps=steps), 1)
    assert seen == [2] * guided + [1] * (steps - guided)


def test_images_without_guidance_stay_what_they_are() -> None:
    rows = _rows("sdxl", 2, guidance=1.0)
    assert all(map(np.array_equal, pixels_of(Denoiser(models.pipe("sdxl"), HALF), rows, 2),
                   pixels_of(Denoiser(models.pipe("sdxl")), rows, 2)))  # fmt: skip


def test_whoever_wants_to_stop_is_still_asked_after_every_step() -> None:
    asked = []
    pixels_of(Denoiser(models.pipe("sdxl"), HALF), _rows("sdxl", 2), 2, lambda: asked.append(1))
    assert len(asked) == 4


@pytest.mark.parametrize("sampler", ["dpmpp_2m", "euler_a", "heun", "lcm"])
def test_guidance_ends_with_every_kind_of_sampler(sampler: str) -> None:
    rows = _rows("sd", 2, sampler=sampler)
    ours = pixels_of(Denoiser(models.pipe("sd"), HALF), rows, 2)
    assert not any(map(np.array_equal, ours, pixels_of(Denoiser(models.pipe("sd")), rows, 2)))
    assert np.array_equal(pixels_of(Denoiser(models.pipe("sd"), HALF), rows[1:], 2)[0], ours[1])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_halved_is_what_the_pipeline_shows_after_each_step(kind: str) -> None:
    pipe: diffusers.DiffusionPipeline = families.pipe(kind)
    assert {*(family(type(pipe).__name__).halved or ())} <= {*pipe._callback_tensor_inputs}
