"""Choices between kernels that only a measurement on a GPU can settle, with their defaults.

Each is an environment variable, so that a benchmark can try both. They are no settings of a job:
once a choice is measured, the better one stays and its variable goes. All are part of the key of
compiled code.
"""

import os
from dataclasses import dataclass

import torch

from imagekiln.steps.errors import BadInput

REGIONAL_BLOCKS_VARIABLE = "IMAGEKILN_REGIONAL_BLOCKS"
DETERMINISTIC_COMPILE_VARIABLE = "IMAGEKILN_DETERMINISTIC_COMPILE"
DETERMINISTIC_CUDNN_VARIABLE = "IMAGEKILN_DETERMINISTIC_CUDNN"


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """What the environment chooses.

    `regional_blocks`: denoisers that are compiled whole by default are compiled by their blocks
    where `compile.BLOCK_CLASSES` names them. `deterministic_compile`: PyTorch's compiler decides
    without timing. `deterministic_cudnn`: cuDNN runs only algorithms that give equal bytes.
    """

    regional_blocks: bool = False
    deterministic_compile: bool = True
    deterministic_cudnn: bool = True


def kernel_choices() -> KernelChoices:
    """The choices of this process. Raises BadInput where a variable is neither 0 nor 1."""
    defaults = KernelChoices()
    return KernelChoices(
        _read_flag(REGIONAL_BLOCKS_VARIABLE, default=defaults.regional_blocks),
        _read_flag(DETERMINISTIC_COMPILE_VARIABLE, default=defaults.deterministic_compile),
        _read_flag(DETERMINISTIC_CUDNN_VARIABLE, default=defaults.deterministic_cudnn),
    )


def restrict_cudnn() -> None:
    """Have cuDNN run only deterministic algorithms in this process, as the choices say.

    Compiled code calls convolutions through PyTorch, which reads this at each call.
    """
    torch.backends.cudnn.deterministic = kernel_choices().deterministic_cudnn


def _read_flag(variable: str, *, default: bool) -> bool:
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise BadInput(f"{variable} is {value!r} in the environment. Write 0 or 1, or unset it.")
    return value == "1" if value else default
