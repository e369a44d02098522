"""A GPU that cannot be used: whether another attempt may help, and what the sentence says."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion.device import (
    NODE_VARIABLE,
    device_error,
    is_device_lost,
    side_stream,
)
from imagekiln.steps.generate.diffusion.device_choice import choose_device
from imagekiln.steps.generate.diffusion.profiling import Spans
from imagekiln.steps.generate.diffusion.text_encoding import TextCache, TextPrefetcher, TextRequest
from imagekiln.steps.generate.diffusion.transfer import copy_to_host
from tests.cuda import CUDA, install
from tests.devices import remove_gpu

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


def test_missing_gpu_may_be_there_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_gpu(monkeypatch, "No CUDA GPUs are available")
    with pytest.raises(
        TryAgain, match=r"'cuda' is not there \(No CUDA GPUs are available\)\. Run where it is"
    ):
        choose_device("cuda")


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


def test_gpu_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_gpu(monkeypatch, "NVIDIA H200", LOST)
    with pytest.raises(TryAgain, match=r"the device failed .CUDA error: an illegal memory access"):
        choose_device("cuda")


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


def test_what_streams_share_is_not_freed_on_a_lost_device_which_would_end_the_process_by_a_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = install(monkeypatch)
    images = cuda.on_device(torch.rand(1, 3, 4, 4))
    shot = copy_to_host(images, side_stream(CUDA), Spans(torch.device("cpu")))
    prefetcher = TextPrefetcher(CUDA, lambda _: None)
    texts = TextCache(lambda _: (cuda.on_device(torch.rand(1, 2)),))
    prefetcher.start([TextRequest(texts, "a fox", None)])
    prefetcher.wait()
    prefetcher.close()
    on_streams = (shot.rgb, shot.finite, *texts.get("a fox"))
    shared = [weakref.ref(each) for each in on_streams]
    other = weakref.ref(images)

    device_error(LOST)
    del images, shot, texts, on_streams
    gc.collect()
    assert None not in [each() for each in shared]
    assert other() is None


def test_failure_of_a_pod_names_its_node_and_how_to_take_it_out_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NODE_VARIABLE, "gpu-7")
    assert str(device_error(LOST)).endswith(
        "the device on node gpu-7 failed (CUDA error: an illegal memory access was encountered). "
        "Run the command again. If this node fails again: kubectl cordon gpu-7"
    )
    remove_gpu(monkeypatch, "No CUDA GPUs are available")
    with pytest.raises(TryAgain, match=r"is not there on node gpu-7 .* kubectl cordon gpu-7$"):
        choose_device("cuda")
