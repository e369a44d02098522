"""Foretold steps: on a schedule, as diffusers foretells them, and known to no other batch."""

import json
from collections.abc import Callable

import diffusers
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.families import FAMILIES, family
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.speed import Speed
from imagekiln.steps.stop import Stopped
from tests import families, models
from tests.drawing import pixels_of
from tests.models import SIDE
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

RGB = npt.NDArray[np.uint8]
KINDS = ["cogview4", "flux", "flux2", "hunyuan-image", "klein", "qwen-image"]
THIRD = Speed(reuse=3)


def _rows(kind: str, count: int, **settings: object) -> list[ImageRow]:
    side = families.SIDES.get(kind, SIDE)
    plain = {"steps": 7, "width": side, "height": side, "negative_prompt": "a yellow star"}
    return [image_row(f"a red circle {place}", place, **plain | settings) for place in range(count)]


def _computed(pipe: models.Untyped) -> list[int]:
    """The numbers of the steps, from 0, at which the first block computes from now on."""
    steps, step = list[int](), [-1]
    block = pipe.transformer.transformer_blocks[0]
    layer = next(each for each in block.modules() if isinstance(each, torch.nn.Linear))

    def begins(*_: object) -> None:
        step[0] += 1

    pipe.transformer.register_forward_pre_hook(begins)
    layer.register_forward_pre_hook(lambda *_: steps.append(step[0]))
    return steps


def test_the_table_names_every_family_in_which_steps_can_be_foretold() -> None:
    assert set(map(_name, KINDS)) == {name for name, each in FAMILIES.items() if each.foretold}


def _name(kind: str) -> str:
    return str(json.loads((families.folder(kind) / "model_index.json").read_text())["_class_name"])


@pytest.mark.parametrize(("interval", "computed"), [(2, [0, 1, 2, 4, 6, 8, 10]), (3, [0, 1, 2, 4, 7, 10])])
def test_the_first_three_steps_are_computed_the_fifth_and_then_one_in_so_many(
    interval: int, computed: list[int]
) -> None:
    pipe = families.pipe("flux")
    steps = _computed(pipe)
    pixels_of(Denoiser(pipe, Speed(reuse=interval)), _rows("flux", 2, steps=11), 2)
    assert steps == computed


SHAPES = [(kind, *shape) for kind in KINDS for shape in [(2, 1), (4, 2)] if kind != "hunyuan-image" or shape == (2, 1)]


@pytest.mark.parametrize(("kind", "size", "wide"), SHAPES)
def test_an_image_depends_on_neither_its_place_nor_its_neighbours_nor_earlier_batches(
    kind: str, size: int, wide: int
) -> None:
    denoiser = Denoiser(families.pipe(kind), THIRD)
    first, *others = _rows(kind, size, width=wide * families.SIDES.get(kind, SIDE), steps=5)
    alone = pixels_of(denoiser, [first], size)[0]
    assert alone.std() > 1
    assert np.array_equal(pixels_of(denoiser, [first, *others], size)[0], alone)
    assert np.array_equal(pixels_of(denoiser, [*others, first], size)[-1], alone)


def _stopping(after: int) -> Callable[[], None]:
    asked = []

    def check() -> None:
        asked.append(1)
        if len(asked) == after:
            raise Stopped

    return check


def test_a_batch_knows_nothing_of_one_that_ended_midway() -> None:
    denoiser, rows = Denoiser(families.pipe("flux"), THIRD), _rows("flux", 2)
    whole = pixels_of(denoiser, rows, 2)
    with pytest.raises(Stopped):
        denoiser.draw(_rows("flux", 2, seed=99), 2, _stopping(5))
    assert all(map(np.array_equal, pixels_of(denoiser, rows, 2), whole))


@pytest.mark.parametrize("kind", ["flux", "qwen-image"])
def test_an_image_is_that_of_diffusers_own_cache(kind: str) -> None:
    (row,) = _rows(kind, 1)
    pipe = families.pipe(kind)
    pipe.transformer.enable_cache(
        diffusers.TaylorSeerCacheConfig(cache_interval=3, use_lite_mode=True, taylor_factors_dtype=torch.float32)
    )
    guided = {family(type(pipe).__name__).guidance: row.pixels.guidance}
    theirs = pipe(
        row.pixels.prompt,
        generator=[torch.Generator("cpu").manual_seed(row.pixels.seed)],
        width=row.pixels.width,
        height=row.pixels.height,
        num_inference_steps=row.pixels.steps,
        **guided | ({} if kind == "flux" else {"negative_prompt": row.pixels.negative_prompt}),
    )
    ours = pixels_of(Denoiser(families.pipe(kind), THIRD), [row], 1)[0]
    assert np.array_equal(ours, np.asarray(theirs.images[0]))
    assert not np.array_equal(ours, pixels_of(Denoiser(families.pipe(kind)), [row], 1)[0])


def test_foretold_steps_and_guidance_that_ends_go_together() -> None:
    both = Speed(reuse=2, guidance_until=0.5)
    rows = _rows("klein", 2)
    ours = pixels_of(Denoiser(families.pipe("klein"), both), rows, 2)
    assert not np.array_equal(ours[0], pixels_of(Denoiser(families.pipe("klein"), Speed(reuse=2)), rows, 2)[0])
    assert np.array_equal(pixels_of(Denoiser(families.pipe("klein"), both), rows[1:], 2)[0], ours[1])


def test_blocks_are_compiled_once_whatever_the_number_of_steps() -> None:
    torch.compiler.reset()
    pipe, counter = families.pipe("flux"), CompileCounter()
    denoiser = Denoiser(pipe, THIRD)
    for block in (*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks):
        block.compile(backend=counter, dynamic=False)
    rows = _rows("flux", 2, steps=12)
    drawn = pixels_of(denoiser, rows, 2)
    assert counter.frame_count == 2  # one for each kind of block
    assert all(map(np.array_equal, drawn, pixels_of(Denoiser(families.pipe("flux"), THIRD), rows, 2)))
    torch.compiler.reset()
