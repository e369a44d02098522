"""The choices between kernels: their defaults, and the environment variables that change them."""

import re

import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.compile import compile_options
from imagekiln.steps.generate.diffusion.kernels import (
    DECODE_IMAGES_VARIABLE,
    DECODE_PIXELS_VARIABLE,
    DETERMINISTIC_COMPILE_VARIABLE,
    DETERMINISTIC_CUDNN_VARIABLE,
    MIDDLE_ATTENTION_VARIABLE,
    OVERLAP_BATCHES_VARIABLE,
    REGIONAL_BLOCKS_VARIABLE,
    KernelChoices,
    kernel_choices,
    restrict_cudnn,
)

OTHER_VALUES = {
    REGIONAL_BLOCKS_VARIABLE: "1",
    DETERMINISTIC_COMPILE_VARIABLE: "0",
    DETERMINISTIC_CUDNN_VARIABLE: "0",
    DECODE_PIXELS_VARIABLE: "4096",
    DECODE_IMAGES_VARIABLE: "2",
    MIDDLE_ATTENTION_VARIABLE: "matmul",
    OVERLAP_BATCHES_VARIABLE: "1",
}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in OTHER_VALUES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)


def test_kernels_give_equal_bytes_unless_the_environment_chooses_otherwise() -> None:
    assert kernel_choices() == KernelChoices(
        regional_blocks=False,
        deterministic_compile=True,
        deterministic_cudnn=True,
        decode_pixels=1024**2,
        decode_images=8,
        middle_attention="fused",
        overlap_batches=False,
    )
    restrict_cudnn()
    assert torch.backends.cudnn.deterministic is True
    assert compile_options(kernel_choices()) == {"options": {"deterministic": True}}


def test_each_choice_is_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in OTHER_VALUES.items():
        monkeypatch.setenv(variable, value)
    assert kernel_choices() == KernelChoices(
        regional_blocks=True,
        deterministic_compile=False,
        deterministic_cudnn=False,
        decode_pixels=4096,
        decode_images=2,
        middle_attention="matmul",
        overlap_batches=True,
    )
    restrict_cudnn()
    assert torch.backends.cudnn.deterministic is False
    assert compile_options(kernel_choices()) == {}


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        (REGIONAL_BLOCKS_VARIABLE, "yes", "Write 0 or 1"),
        (OVERLAP_BATCHES_VARIABLE, "2", "Write 0 or 1"),
        (DECODE_IMAGES_VARIABLE, "0", "Write a positive integer"),
        (DECODE_PIXELS_VARIABLE, "1e6", "Write a positive integer"),
        (MIDDLE_ATTENTION_VARIABLE, "flash", "Write fused or matmul"),
    ],
)
def test_another_value_is_refused(
    variable: str, value: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    message = f"{variable} is {value!r} in the environment. {remedy}, or unset it."
    with pytest.raises(BadInput, match=re.escape(message)):
        kernel_choices()
