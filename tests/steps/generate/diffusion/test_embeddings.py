"""Texts, embedded once each."""

import pytest
import torch

from imagekiln.steps.generate.diffusion import text_encoding
from imagekiln.steps.generate.diffusion.text_encoding import TextCache, stack_embeds


class Encoder:
    """Encodes a text as its length, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> tuple[torch.Tensor, ...]:
        self.asked.append(text)
        return torch.full((1, 3), len(text)), torch.full((1,), -len(text))


def test_texts_are_stacked_in_the_order_of_the_batch() -> None:
    cache = TextCache(Encoder())
    one, two = stack_embeds([cache.get(text) for text in ("a", "bb", "a")], None)
    assert one.tolist() == [[1, 1, 1], [2, 2, 2], [1, 1, 1]]
    assert two.tolist() == [-1, -2, -1]


def test_a_text_is_encoded_once() -> None:
    encoder = Encoder()
    cache = TextCache(encoder)
    for _ in range(3):
        for text in ("a", "bb", "a"):
            cache.get(text)
    assert encoder.asked == ["a", "bb"]


def test_only_the_latest_texts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoding, "MAX_CACHED_TEXTS", 2)
    encoder = Encoder()
    cache = TextCache(encoder)
    for text in ("a", "bb", "a", "ccc", "a", "bb"):
        cache.get(text)
    assert encoder.asked == ["a", "bb", "ccc", "bb"]


@pytest.mark.parametrize(
    ("limit", "asked"), [(64, ["a", "bb"]), (63, ["a", "bb", "a"]), (1, ["a", "bb", "a"])]
)
def test_no_more_is_remembered_than_the_device_has_room_for(
    monkeypatch: pytest.MonkeyPatch, limit: int, asked: list[str]
) -> None:
    monkeypatch.setattr(text_encoding, "MAX_CACHE_BYTES", limit)
    encoder = Encoder()
    cache = TextCache(encoder)
    for text in ("a", "bb", "a"):
        cache.get(text)
    assert encoder.asked == asked


def test_texts_of_a_batch_are_filled_up_with_zeros() -> None:
    (filled,) = stack_embeds([(torch.ones(1, 2, 1),), (torch.ones(1, 3, 1),)], 4)
    assert filled[..., 0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
