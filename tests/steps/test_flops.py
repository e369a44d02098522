"""Floating-point operations, counted on a copy without weights."""

import diffusers
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from imagekiln.steps import flops
from imagekiln.steps.flops import Call, Flops
from tests import models


@pytest.fixture(scope="module")
def unet() -> models.Untyped:
    return models.tiny_unet(models.WIDE).eval()


def _inputs(images: int = 1, tokens: int = 8) -> tuple[torch.Tensor, ...]:
    return torch.zeros(images, 4, 8, 8), torch.tensor(7), torch.zeros(images, tokens, models.WIDE)


def _counted(model: models.Untyped, inputs: tuple[torch.Tensor, ...], part: flops.Part = "denoiser") -> float | None:
    counter = Flops({part: model, "denoiser": model})
    calls = [counter.note(part, inputs, {}), counter.note("denoiser", inputs, {})][: 1 if part == "denoiser" else 2]
    counter.count()
    return counter.sum(calls)


def test_a_call_is_counted_as_if_it_were_made(unet: models.Untyped) -> None:
    with torch.no_grad(), FlopCounterMode(display=False) as made:
        unet(*_inputs())
    assert _counted(unet, _inputs()) == made.get_total_flops() > 1e5


def test_a_batch_of_two_takes_twice_as_much(unet: models.Untyped) -> None:
    one, two = _counted(unet, _inputs(1)), _counted(unet, _inputs(2))
    assert one is not None
    assert two == 2 * one


def test_a_model_in_bfloat16_or_compiled_counts_the_same(unet: models.Untyped) -> None:
    half = tuple(each.to(torch.bfloat16) if each.is_floating_point() else each for each in _inputs())
    assert _counted(torch.compile(unet, backend="eager"), half) == _counted(unet, _inputs())


def test_stable_diffusion_takes_what_is_known_of_it() -> None:
    with torch.device("meta"):
        unet = diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
        inputs = torch.zeros(1, 4, 64, 64), torch.tensor(7), torch.zeros(1, 77, 768)
    assert _counted(unet, inputs) == pytest.approx(0.803e12, rel=0.01)


def test_calls_that_differ_in_numbers_alone_are_one() -> None:
    counter = Flops({})
    at = [
        counter.note("denoiser", (torch.full((1, 4), value),), {"time": value, "masked": True}) for value in (1.0, 2.0)
    ]
    other = counter.note("denoiser", (torch.zeros(1, 4),), {"time": 1.0, "masked": False})
    assert at[0] == at[1] != other


def test_of_texts_of_many_lengths_a_few_are_counted_and_others_are_like_the_nearest(
    unet: models.Untyped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flops, "MOST_LENGTHS", 2)
    counter, calls = Flops({"denoiser": unet}), dict[int, Call]()
    for tokens in (4, 16, 5, 15):
        calls[tokens] = counter.note("denoiser", _inputs(tokens=tokens), {})
        counter.count()
    found = {tokens: counter.sum([call]) for tokens, call in calls.items()}
    assert found[4] == found[5] != found[15] == found[16]


def test_a_model_that_looks_at_its_numbers_is_unknown_and_no_failure() -> None:
    class Looking(diffusers.UNet2DConditionModel):  # type: ignore[misc]  # diffusers has no types
        def forward(self, sample: torch.Tensor, *_: object) -> torch.Tensor:
            return sample * float(sample.sum())

    assert _counted(Looking(**models.tiny_unet(models.WIDE).config), _inputs()) is None
    assert _counted(torch.nn.Linear(1, 1), _inputs()) is None


def test_a_batch_in_which_no_denoiser_was_seen_is_unknown() -> None:
    assert Flops({}).sum([]) is None
