"""What a call of a pipeline gave."""

from types import SimpleNamespace

import pytest

from imagekiln.steps.generate.diffusion.denoiser import safety_flags


@pytest.mark.parametrize("name", ["nsfw_content_detected", "nsfw_detected"])
def test_what_a_safety_checker_refused_is_known_by_either_name(name: str) -> None:
    assert safety_flags(SimpleNamespace(images=[], **{name: [False, True]}), 2) == [False, True]
    assert safety_flags(SimpleNamespace(images=[], **{name: None}), 2) == [False, False]


def test_without_a_safety_checker_nothing_is_refused() -> None:
    assert safety_flags(SimpleNamespace(images=[]), 2) == [False, False]
