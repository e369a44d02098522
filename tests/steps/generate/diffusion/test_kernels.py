"""The choices between kernels: their defaults, and the environment variables that change them."""

import re

import pytest
import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.compile import compile_options
from imagekiln.steps.generate.diffusion.kernels import (
    DETERMINISTIC_COMPILE_VARIABLE,
    DETERMINISTIC_CUDNN_VARIABLE,
    REGIONAL_BLOCKS_VARIABLE,
    KernelChoices,
    kernel_choices,
    restrict_cudnn,
)

VARIABLES = (
    REGIONAL_BLOCKS_VARIABLE,
    DETERMINISTIC_COMPILE_VARIABLE,
    DETERMINISTIC_CUDNN_VARIABLE,
)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)


def test_kernels_give_equal_bytes_unless_the_environment_chooses_otherwise() -> None:
    assert kernel_choices() == KernelChoices(
        regional_blocks=False, deterministic_compile=True, deterministic_cudnn=True
    )
    restrict_cudnn()
    assert torch.backends.cudnn.deterministic is True
    assert compile_options(kernel_choices()) == {"options": {"deterministic": True}}


def test_each_choice_is_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in zip(VARIABLES, "100", strict=True):
        monkeypatch.setenv(variable, value)
    assert kernel_choices() == KernelChoices(
        regional_blocks=True, deterministic_compile=False, deterministic_cudnn=False
    )
    restrict_cudnn()
    assert torch.backends.cudnn.deterministic is False
    assert compile_options(kernel_choices()) == {}


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGIONAL_BLOCKS_VARIABLE, "yes")
    message = f"{REGIONAL_BLOCKS_VARIABLE} is 'yes' in the environment. Write 0 or 1, or unset it."
    with pytest.raises(BadInput, match=re.escape(message)):
        kernel_choices()
