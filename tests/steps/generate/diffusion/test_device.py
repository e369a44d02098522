"""The device that was asked for, and no other."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion import device
from imagekiln.steps.generate.diffusion.device import (
    NODE_VARIABLE,
    choose_device,
    choose_kind,
    device_error,
    explain_device,
    is_device_lost,
    is_out_of_memory,
)
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.workers import choose_environments
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.local import run
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runtime.progress import NoProgress
from tests.devices import remove_gpu
from tests.runs import image_row, job, picture, write_prompts


def test_a_device_that_is_not_there_is_never_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove_gpu(monkeypatch)
    with pytest.raises(TryAgain, match=r"device 'cuda' is not there.*\. Run where it is"):
        choose_device("cuda")


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


H200 = "GPU 0: NVIDIA H200"


def _attach(monkeypatch: pytest.MonkeyPatch, gpu: str | None) -> None:
    remove_gpu(monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(device, "find_nvidia_gpu", lambda: gpu)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_gpu_that_pytorch_does_not_find_is_no_absent_one(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _attach(monkeypatch, H200)
    with pytest.raises(
        TryAgain, match=r"NVIDIA H200 is not there, or PyTorch cannot use it \(No CUDA"
    ):
        choose_kind(device)
    with pytest.raises(BadInput, match="NVIDIA H200 is not there"):
        choose_environments(read_job("bundled:demo.yaml", [f"device={device}"]), None)


def test_pytorch_without_cuda_says_that_there_is_a_gpu_which_it_cannot_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _attach(monkeypatch, H200)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BadInput, match=r"NVIDIA H200 cannot .*without CUDA.* set device: cpu"):
        choose_kind("auto")


@pytest.mark.parametrize(("device", "says_so"), [("auto", True), ("cpu", False)])
def test_run_that_leaves_its_device_open_says_that_it_draws_on_the_cpu(
    device: str, says_so: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _attach(monkeypatch, None)
    sentences: list[str] = []

    class Progress(NoProgress):
        def show_event(self, name: str, sentence: str) -> None:  # noqa: ARG002  # for programs
            sentences.append(sentence)

    prompts = write_prompts(tmp_path / "prompts.parquet", [{"prompt": "a red circle"}])
    run(job(prompts, str(tmp_path / "out"), device=device), Progress())
    assert ("No GPU here: drawing on the CPU." in sentences) == says_so


LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def _raise(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _with_gpu(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """A GPU on which each kernel fails."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch, "ones", _raise(error))


def test_old_driver_is_named_with_its_remedy_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove_gpu(
        monkeypatch, "The NVIDIA driver on your system is too old (found version 12040). Please"
    )
    with pytest.raises(BadInput, match=r"found version 12040.*Update the driver .*580 or later"):
        choose_device("cuda")


def test_gpu_that_pytorch_has_no_code_for_is_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = "CUDA error: no kernel image is available for execution on the device"
    _with_gpu(monkeypatch, "Tesla V100-SXM2-16GB", torch.AcceleratorError(error))
    for name in ("cuda", "auto"):
        with pytest.raises(BadInput, match=r"^Tesla V100-SXM2-16GB: .* has no code for it\. Use"):
            choose_device(name)


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_whatever_a_library_says_a_device_that_no_longer_answers_is_lost(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_device_lost(RuntimeError(message))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not is_device_lost(RuntimeError(message))
    monkeypatch.setattr(torch.cuda, "synchronize", _raise(LOST))
    assert is_device_lost(RuntimeError(message))


def test_failure_of_a_pod_names_its_node_and_how_to_take_it_out_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NODE_VARIABLE, "gpu-7")
    assert str(device_error(LOST)).endswith(
        "the device failed (CUDA error: an illegal memory access was encountered). "
        "Run the command again. If node gpu-7 fails again: kubectl cordon gpu-7"
    )
    remove_gpu(monkeypatch, "No CUDA GPUs are available")
    with pytest.raises(TryAgain, match=r"is not there.* kubectl cordon gpu-7$"):
        choose_device("cuda")


GIB = 2**30
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _with_memory(monkeypatch: pytest.MonkeyPatch, *, free: float, own: float) -> None:
    """A GPU of 40 GiB, of which this process has reserved some."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * GIB), 40 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(own * GIB))


def test_memory_that_a_neighbour_holds_may_be_free_at_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_memory(monkeypatch, free=1, own=8)
    failure = explain_device("some/model", FULL)
    assert isinstance(failure, TryAgain)
    assert "other processes hold 31.0 of its 40.0 GiB" in str(failure)


def _draw_up_to(side: int, drawn: Sequence[ImageRow]) -> list[str]:
    """The statuses of rows where images of more than this side do not fit."""

    def draw(rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:  # noqa: ARG001
        if any(row.parameters.width > side for row in rows):
            raise FULL
        return [picture(row.index_in_part) for row in rows]

    recovery = BatchRecovery(draw, lambda _: 2, usual_pixels=16 * 16)
    return [recovery.draw_prefix([row])[0].status for row in drawn]


def test_image_larger_than_the_jobs_own_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_memory(monkeypatch, free=1, own=38)
    rows = [image_row(width=64, height=64), image_row(), image_row(width=64, height=64)]
    assert _draw_up_to(16, rows) == ["failed", "ok", "failed"]
