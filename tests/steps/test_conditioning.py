"""What a pipeline is told of a batch."""

import pytest
import torch

from imagekiln.steps import conditioning
from imagekiln.steps.conditioning import EMBEDS, Conditioning, TextCache
from tests import models
from tests.runs import image_row


class Encoder:
    """Encodes a text as its length, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> tuple[torch.Tensor, ...]:
        self.asked.append(text)
        return torch.full((1, 3), len(text)), torch.full((1,), -len(text))


def _tensor(inputs: conditioning.Inputs, name: str) -> torch.Tensor:
    found = inputs[name]
    assert isinstance(found, torch.Tensor)
    return found


def test_texts_are_stacked_in_the_order_of_the_batch() -> None:
    one, two = TextCache(Encoder()).stacked(["a", "bb", "a"])
    assert one.tolist() == [[1, 1, 1], [2, 2, 2], [1, 1, 1]]
    assert two.tolist() == [-1, -2, -1]


def test_a_text_is_encoded_once() -> None:
    encoder = Encoder()
    cache = TextCache(encoder)
    for _ in range(3):
        cache.stacked(["a", "bb", "a"])
    assert encoder.asked == ["a", "bb"]


def test_only_the_latest_texts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditioning, "REMEMBERED_TEXTS", 2)
    encoder = Encoder()
    cache = TextCache(encoder)
    for text in ("a", "bb", "a", "ccc", "a", "bb"):
        cache.stacked([text])
    assert encoder.asked == ["a", "bb", "ccc", "bb"]


def test_a_text_that_cannot_be_encoded_harms_no_other() -> None:
    def encode(text: str) -> tuple[torch.Tensor, ...]:
        if text == "bad":
            raise ValueError(text)
        return (torch.zeros(1, 1),)

    cache = TextCache(encode)
    with pytest.raises(ValueError, match="bad"):
        cache.stacked(["good", "bad"])
    assert [each.shape for each in cache.stacked(["good", "good"])] == [(2, 1)]


def test_noise_of_an_image_follows_from_its_seed_alone() -> None:
    told = Conditioning(models.pipe("sd"))
    alone = _tensor(told.noise([image_row(seed=5)]), "latents")
    among = _tensor(told.noise([image_row("b", 1, seed=4), image_row("c", 2, seed=5)]), "latents")
    assert alone.shape == (1, 4, 8, 8)
    assert torch.equal(alone[0], among[1])
    assert not torch.equal(alone[0], among[0])


def test_noise_is_drawn_in_float32_and_then_cast() -> None:
    rows = [image_row(seed=5)]
    exact = _tensor(Conditioning(models.pipe("sd")).noise(rows), "latents")
    rounded = _tensor(Conditioning(models.pipe("sd").to(torch.bfloat16)).noise(rows), "latents")
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, exact.to(torch.bfloat16))


def test_noise_has_the_size_of_the_image() -> None:
    latents = _tensor(Conditioning(models.pipe("sd")).noise([image_row(width=48, height=32)]), "latents")
    assert latents.shape == (1, 4, 16, 24)


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_families_known_to_be_equal_get_embeddings_for_both_texts(kind: models.Kind) -> None:
    told = Conditioning(models.pipe(kind)).text([image_row(), image_row("b", 1, negative_prompt="c")])
    names = EMBEDS[type(models.pipe(kind)).__name__]
    assert set(told) == {*names, *(f"negative_{name}" for name in names)}
    assert {len(_tensor(told, name)) for name in told} == {2}


def test_without_guidance_no_negative_prompt_is_encoded() -> None:
    told = Conditioning(models.pipe("sd")).text([image_row(guidance=1.0, negative_prompt="c")])
    assert set(told) == {"prompt_embeds"}


@pytest.mark.parametrize("kind", ["sd3", "flux"])
def test_other_families_get_the_text_itself(kind: models.Kind) -> None:
    told = Conditioning(models.pipe(kind))
    rows = [image_row("a"), image_row("b", 1, negative_prompt="c")]
    assert told.text(rows) == {"prompt": ["a", "b"], "negative_prompt": ["", "c"]}
    assert set(told.noise(rows)) == {"generator"}


def test_an_argument_that_the_pipeline_does_not_take_is_known() -> None:
    told = Conditioning(models.pipe("sd"))
    assert told.accepts("callback_on_step_end")
    assert not told.accepts("true_cfg_scale")
