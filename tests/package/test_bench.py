"""Benchmarks stand for what they say."""

import pytest

from tests.bench.random_models import parameters


@pytest.mark.parametrize(
    ("name", "published"),
    [("sd15", 859_520_964), ("sdxl", 2_567_463_684), ("flux", 11_901_408_320)],
)
def test_a_model_of_random_weights_has_as_many_as_the_real_one(name: str, published: int) -> None:
    assert parameters(name) == published
