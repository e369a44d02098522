"""The device that was asked for, and no other."""

import pytest
import torch

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.generate.diffusion.device_choice import choose_device
from tests.devices import remove_gpu

THERE = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def test_auto_takes_the_best_device_there_is() -> None:
    assert choose_device("auto").type == next(name for name, here in THERE.items() if here)


def test_a_device_that_is_not_there_is_never_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove_gpu(monkeypatch)
    with pytest.raises(TryAgain, match=r"device 'cuda' is not there.*\. Run where it is"):
        choose_device("cuda")


def test_a_device_that_pytorch_is_built_without_is_a_mistake_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove_gpu(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(BadInput, match=r"'cuda' cannot be used: .* Install a PyTorch with CUDA"):
        choose_device("cuda")
    with pytest.raises(BadInput, match=r"'mps' cannot be used: .* or set device: cpu\."):
        choose_device("mps")
    assert choose_device("auto").type == "cpu"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        MemoryError(),
    ],
    ids=repr,
)
def test_memory_that_ran_out_is_known_as_such_and_is_no_lost_device(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_device_lost(error)


def test_an_error_of_the_device_itself_loses_it() -> None:
    assert is_device_lost(torch.AcceleratorError("CUDA error: device-side assert triggered"))
    assert not is_device_lost(RuntimeError("shapes cannot be multiplied"))
