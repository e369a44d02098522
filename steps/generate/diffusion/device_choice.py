"""The device that was asked for and no other: a GPU that cannot be used is no absent one."""

import os
import re

import torch

from imagekiln.steps.errors import BadInput, KilnError, TryAgain, first_line
from imagekiln.steps.generate.diffusion.device import (
    describe_device,
    device_error,
    explain_device,
    node_advice,
    on_node,
)
from imagekiln.steps.runtime.machine import VISIBLE_DEVICES_VARIABLE, find_nvidia_gpu, visible_gpus

# PyTorch has one error class for all that CUDA lacks, and these messages of it.
OLD_DRIVER_MESSAGE = "is too old"
ABSENCE_MESSAGE = re.compile("Found no NVIDIA driver|No (CUDA|HIP) GPUs are available")
CUDA_ERROR = re.compile(r"Error \d+: .*")  # behind a question about the order of calls
NO_CODE_MESSAGE = "no kernel image is available"


def choose_device(name: str) -> torch.device:
    """Return the device of the job's `device`; `auto` takes the best one.

    Raises BadInput if this PyTorch has no code for it, TryAgain if it does not answer.
    """
    device = torch.device(choose_kind(name))
    if device.type == "cuda":
        _require_kernels(device)
    return device


def choose_kind(name: str) -> str:
    """Return the kind of the job's `device`; `auto` is the CPU only without a GPU.

    Raises TryAgain if the device is missing or broken, BadInput if PyTorch can never use it.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        kind = next(kind for kind, is_available in available.items() if is_available)
        if kind == "cpu" and (failure := _find_unusable_gpu()):
            raise failure
        return kind
    if not available[name]:
        raise _missing_device(name)
    return name


def _missing_device(name: str) -> KilnError:
    """The failure to report for a device that is not available, with the reason that CUDA gives."""
    if not _is_built_for(name):
        return _missing_build(name, f"device {name!r}")
    explanation = ""
    if name == "cuda":
        if failure := _find_unusable_gpu():
            return failure
        explanation = f" ({_cuda_failure()})"
    return TryAgain(
        f"device {name!r} is not there{on_node()}{explanation}. Run where it is, or set device: "
        f"auto.{node_advice()}"
    )


def _find_unusable_gpu() -> KilnError | None:
    """Return the failure to report if there is an unusable GPU; None if there is none."""
    gpu = find_nvidia_gpu() if visible_gpus(os.environ, 1) else None  # unless they are hidden
    if not _is_built_for("cuda"):
        return _missing_build("cuda", gpu) if gpu else None
    reason = _cuda_failure()
    if OLD_DRIVER_MESSAGE in reason:
        return BadInput(
            f"the GPU's driver{on_node()} is too old for this PyTorch, which is built for CUDA "
            f"{torch.version.cuda}: {reason}. Update the driver (CUDA 13 needs 580 or later) or "
            "run on nodes that have it. Data-center GPUs with driver 535, 550 or 570 need an image "
            "with NVIDIA's compatibility libraries: docs/gpus.md. Or set device: cpu."
        )
    if gpu is None and ABSENCE_MESSAGE.search(reason):
        return None
    return TryAgain(  # another node may have one in order
        f"{gpu or 'a GPU'} is here{on_node()}, and PyTorch cannot use it ({reason}). See what "
        "nvidia-smi and dmesg say of its driver; this user must have the right to open "
        "/dev/nvidia*, and a container needs NVIDIA's container toolkit. Or set device: "
        f"cpu.{node_advice()}"
    )


def _missing_build(name: str, subject: str) -> BadInput:
    return BadInput(
        f"{subject} cannot be used{on_node()}: this PyTorch ({torch.__version__}) is built without "
        f"{name.upper()}. Install a PyTorch with {name.upper()}, or set device: cpu."
    )


def _is_built_for(name: str) -> bool:
    """Return whether this PyTorch has code for a device. ROCm goes by the name of CUDA."""
    if name == "mps":
        return torch.backends.mps.is_built()
    return torch.version.cuda is not None or torch.version.hip is not None


def _cuda_failure() -> str:
    """Why CUDA does not start, as the end of a clause."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  # its class depends on the cause
        code = CUDA_ERROR.search(str(error))
        reason, *_ = str(error).partition(" Please ")  # install something from somewhere
        reason = first_line(code[0] if code else reason).rstrip(".")
    else:
        reason = "it finds none"
    visible = os.environ.get(VISIBLE_DEVICES_VARIABLE)
    return reason if visible is None else f'{reason}; {VISIBLE_DEVICES_VARIABLE} is "{visible}"'


def _require_kernels(device: torch.device) -> None:
    """Raise BadInput if this PyTorch contains no code for the GPU."""
    try:
        torch.ones(1, device=device).sum().item()
    except Exception as error:
        if NO_CODE_MESSAGE not in str(error):
            raise explain_device("PyTorch", error) or device_error(error) from error
        raise BadInput(
            f"{describe_device(device)}{on_node()}: this PyTorch ({torch.__version__}) "
            "has no code for it. Use another GPU: docs/gpus.md lists those that the image runs on. "
            "Or set device: cpu."
        ) from error
