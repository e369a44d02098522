"""The device that was asked for and no other: a GPU that cannot be used is no absent one."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from imagekiln.steps.errors import BadInput, KilnError, TryAgain, first_line
from imagekiln.steps.generate.diffusion.device import (
    describe_device,
    device_error,
    node_advice,
    on_node,
)
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.machine import (
    VISIBLE_DEVICES_VARIABLE,
    attached_gpus,
    hiding_variable,
    may_use,
    named_gpus,
)

# PyTorch has one error class for all that CUDA lacks, and these messages of it.
OLD_DRIVER_MESSAGE = "is too old"
ABSENCE_MESSAGE = re.compile("Found no NVIDIA driver|No (CUDA|HIP) GPUs are available")
CUDA_ERROR = re.compile(r"Error \d+: .*")  # behind a question about the order of calls
# What helps, by a part of CUDA's message.
BROKEN_GPU_REMEDIES = {
    "not yet initialized": "Start NVIDIA's fabric manager on it (nvidia-fabricmanager).",
    "driver combination": "The driver was updated and is not loaded yet: reboot.",
    "forward compatibility": "Remove NVIDIA's compatibility libraries, or update the driver.",
    "ECC": "Reset the GPU (nvidia-smi --gpu-reset), or replace it.",
}
BUILD_REMEDIES = {
    "cuda": "Install a PyTorch with CUDA, or use the GPU image.",
    "mps": "Install PyTorch for macOS on a Mac with Apple silicon.",
}
AMD_DEVICE_FILE = Path("/dev/kfd")
# `sm_90` runs on GPUs of 9.0 and later 9.x, `compute_90` on all of 9.0 and later, and what ends in
# "a" on no other.
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def choose_device(name: str) -> torch.device:
    """The device of the job's `device`; `auto` takes the best one.

    Raises what `choose_kind` does, TryAgain where the device does not answer, and BadInput where
    this PyTorch has no code for it.
    """
    device = torch.device(choose_kind(name))
    if device.type == "cuda":
        _require_kernels(device)
    return device


def choose_kind(name: str) -> str:
    """The kind of device of the job's `device`. For `auto`, it is the CPU only without a GPU.

    Raises TryAgain where the device is missing or in a state of error, BadInput where this PyTorch
    can never use it.
    """
    if name == "auto":
        kind = next(filter(_is_available, ("cuda", "mps")), "cpu")
        if kind == "cpu" and (failure := _find_unusable_gpu()):
            raise failure
        return kind
    if not _is_available(name):
        raise _missing_device(name)
    return name


def _is_available(name: str) -> bool:
    if name == "cuda":
        return torch.cuda.is_available()
    return name == "cpu" or torch.backends.mps.is_available()


def _missing_device(name: str) -> KilnError:
    """The failure to report for a device that is not available, with the reason that CUDA gives."""
    if failure := _find_unusable_gpu():
        return failure
    if not _is_built_for(name):
        return _missing_build(name, f"device {name!r} cannot be used", "auto")
    reason = _cuda_failure() if name == "cuda" else ""
    if name == "cuda" and (variable := hiding_variable(os.environ)):
        reason = f'{variable} is "{os.environ[variable]}", which names no GPU'
    explanation = f" ({reason.rstrip('.')})" if reason else ""
    return TryAgain(
        f"device {name!r} is not there{on_node()}{explanation}. Run where it is, or set device: "
        f"auto.{node_advice()}"
    )


def _find_unusable_gpu() -> KilnError | None:
    """The failure to report where there is a GPU that cannot be used; None where there is none."""
    reason = _cuda_failure() if _is_built_for("cuda") else ""
    if OLD_DRIVER_MESSAGE in reason:
        return _old_driver(reason)
    if reason and not ABSENCE_MESSAGE.search(reason):
        return _broken_gpu(reason)
    gpus = attached_gpus()
    if torch.version.hip is not None and AMD_DEVICE_FILE.exists():
        gpus = (str(AMD_DEVICE_FILE),)
    return _overlooked_gpu(gpus, reason) if gpus and not hiding_variable(os.environ) else None


def _overlooked_gpu(gpus: Sequence[str], reason: str) -> KilnError:
    """The failure to report where this machine has GPUs, and PyTorch finds none."""
    visible = os.environ.get(VISIBLE_DEVICES_VARIABLE, "0")
    indexes = map(str, range(len(gpus)))
    if named_gpus(visible)[0] not in indexes:
        return BadInput(
            f'{VISIBLE_DEVICES_VARIABLE} is "{visible}", and no GPU here has that name: this '
            f"machine has {pluralize(len(gpus), 'GPU')}, counted from 0. Correct it, or unset it."
        )
    if not _is_built_for("cuda"):
        return _missing_build("cuda", f"{gpus[0]} is here, and cannot be used", "cpu")
    if not all(map(may_use, gpus)):
        return BadInput(
            f"{gpus[0]}: this user may not open the GPU's device file{on_node()}. Add the user to "
            "the group that owns it (ls -l names it), or set device: cpu."
        )
    return TryAgain(
        f"{gpus[0]} is here{on_node()}, and PyTorch finds no GPU ({reason.rstrip('.')}). Install "
        "its driver; a container needs its libraries too, by NVIDIA's container toolkit. Or set "
        f"device: cpu.{node_advice()}"
    )


def _missing_build(name: str, finding: str, other: str) -> BadInput:
    return BadInput(
        f"{finding}{on_node()}: this PyTorch ({torch.__version__}) is built without "
        f"{name.upper()}. {BUILD_REMEDIES[name]} Or set device: {other}."
    )


def _old_driver(reason: str) -> BadInput:
    return BadInput(
        f"the GPU's driver{on_node()} is too old for this PyTorch, which is built for CUDA "
        f"{torch.version.cuda}: {reason} Update the driver (CUDA 13 needs 580 or later) or run "
        "on nodes that have it. Data-center GPUs with driver 535, 550 or 570 need an image "
        "with NVIDIA's compatibility libraries: docs/gpus.md. Or set device: cpu."
    )


def _broken_gpu(reason: str) -> TryAgain:
    """The failure to report for a GPU in a state of error, which another node may not have."""
    remedies = [text for part, text in BROKEN_GPU_REMEDIES.items() if part in reason]
    remedy = remedies[0] if remedies else "See what nvidia-smi and dmesg say of it, or reboot."
    return TryAgain(
        f"the GPU{on_node()} cannot be used ({reason.rstrip('.')}). {remedy} Or set device: "
        f"cpu.{node_advice()}"
    )


def _is_built_for(name: str) -> bool:
    """Whether this PyTorch has code for a kind of device. ROCm's goes by the name of CUDA."""
    if name == "mps":
        return torch.backends.mps.is_built()
    return torch.version.cuda is not None or torch.version.hip is not None


def _cuda_failure() -> str:
    """Why CUDA does not start; empty where it does."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  # its class depends on the cause
        code = CUDA_ERROR.search(str(error))
        reason, *_ = str(error).partition(" Please ")  # install something from somewhere
        return first_line(code[0] if code else reason)
    return ""


def _require_kernels(device: torch.device) -> None:
    """Raise BadInput where this PyTorch contains no code for the GPU, which would fail later."""
    try:
        capability = torch.cuda.get_device_capability(device)
    except Exception as error:
        raise device_error(error) from error
    architectures = torch.cuda.get_arch_list()
    if torch.version.cuda is None or has_kernels(architectures, capability):
        return
    major, minor = capability
    raise BadInput(
        f"{describe_device(device)} has compute capability {major}.{minor}, and PyTorch "
        f"{torch.__version__} has code for {', '.join(architectures)} only. Use another GPU: "
        "docs/gpus.md lists those that the image runs on. Or set device: cpu."
    )


def has_kernels(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code for any of these architectures, such as `sm_90`, runs on a GPU."""
    return not architectures or any(
        _runs_on(architecture, capability) for architecture in architectures
    )


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    match = ARCHITECTURE.fullmatch(architecture)
    if match is None:  # a name from a later PyTorch, which knows better
        return True
    kind, major, minor, suffix = match.groups()
    code = (int(major), int(minor))
    if suffix == "a":
        return code == capability
    same_generation = code[0] == capability[0]
    return code <= capability and (kind == "compute" or same_generation)
