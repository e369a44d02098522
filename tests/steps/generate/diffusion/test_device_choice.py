"""A GPU that is there and cannot be used, which is never taken for an absent one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion import device_choice
from imagekiln.steps.generate.diffusion.device_choice import choose_kind, warn_of_slow_attention
from imagekiln.steps.generate.workers import choose_environments
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.local import run
from imagekiln.steps.runtime.progress import Event, NoProgress
from tests.devices import remove_gpu
from tests.runs import job, write_prompts

H200 = "GPU 0: NVIDIA H200"
# A driver that is there: it has a version, and answers everything else with a code of CUDA's.
DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuInit(unsigned f) { return CODE; }
static int fail() { return CODE; }
int cuGetProcAddress_v2(const char *s, void **p, int v, unsigned long f, void *q) {
    *p = !strcmp(s, "cuDriverGetVersion") ? (void *)cuDriverGetVersion : (void *)fail;
    return 0;
}
int cuGetProcAddress(const char *s, void **p, int v, unsigned long f) {
    return cuGetProcAddress_v2(s, p, v, f, 0);
}
"""
CHOOSE = """
import sys
from imagekiln.steps.generate.workers import choose_environments
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.runtime.machine import silence_libraries
silence_libraries()
try:
    print(choose_environments(read_job("bundled:demo.yaml", ["device=" + sys.argv[1]]), None))
except Exception as error:
    print(type(error).__name__, error)
"""
NEEDS_DRIVER = pytest.mark.skipif(
    shutil.which("gcc") is None or torch.version.cuda is None or torch.cuda.is_available(),
    reason="a driver of CUDA is built for a PyTorch with CUDA, where there is none",
)


def _choose_with_driver(folder: Path, version: int, code: int, device: str) -> str:
    """What the choice of a device prints where this driver is installed."""
    (folder / "driver.c").write_text(DRIVER)
    names = [f"-DVERSION={version}", f"-DCODE={code}"]
    compiler = ["gcc", "-shared", "-fPIC", *names, "-o", "libcuda.so.1", "driver.c"]
    subprocess.run(compiler, cwd=folder, check=True)
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE, device],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Warning" not in done.stderr
    return done.stdout.strip()


@NEEDS_DRIVER
@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("version", "code", "device", "sentence"),
    [
        (
            11040,
            0,
            "auto",
            "driver is too old .*built for CUDA .*found version 11040.* device: cpu",
        ),
        (13020, 214, "auto", r"cannot use it \(Error 214: uncorrectable ECC .* device: cpu"),
        (11040, 0, "cuda", "driver is too old for this PyTorch"),
        (13020, 803, "cuda", r"cannot use it \(Error 803: .*driver combination.* nvidia-smi"),
    ],
)
def test_broken_driver_is_a_mistake_with_its_reason_for_auto_too(
    version: int, code: int, device: str, sentence: str, tmp_path: Path
) -> None:
    printed = _choose_with_driver(tmp_path, version, code, device)
    with pytest.raises(BadInput, match=sentence):
        raise BadInput(printed)
    assert printed.startswith("BadInput ")


@NEEDS_DRIVER
def test_driver_that_finds_no_gpu_leaves_auto_to_the_cpu(tmp_path: Path) -> None:
    assert _choose_with_driver(tmp_path, 13020, 100, "auto") == "[{}]"


def _attach(monkeypatch: pytest.MonkeyPatch, gpu: str | None) -> None:
    remove_gpu(monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(device_choice, "find_nvidia_gpu", lambda: gpu)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_gpu_that_pytorch_does_not_find_is_no_absent_one(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _attach(monkeypatch, H200)
    with pytest.raises(TryAgain, match=r"NVIDIA H200 is here, and PyTorch cannot use it \(No CUDA"):
        choose_kind(device)
    with pytest.raises(BadInput, match="NVIDIA H200 is here"):
        choose_environments(read_job("bundled:demo.yaml", [f"device={device}"]), None)


def test_pytorch_without_cuda_says_that_there_is_a_gpu_which_it_cannot_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _attach(monkeypatch, H200)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BadInput, match=r"NVIDIA H200 cannot .*without CUDA.* set device: cpu"):
        choose_kind("auto")


@pytest.mark.parametrize("value", ["-1", "", "NoDevFiles"])
def test_hidden_gpus_are_absent_ones(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _attach(monkeypatch, H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert choose_kind("auto") == "cpu"
    with pytest.raises(TryAgain, match=f'is not there .*CUDA_VISIBLE_DEVICES is "{value}"'):
        choose_kind("cuda")


@pytest.mark.parametrize("value", ["7", "GPU-77"])
def test_name_that_no_gpu_has_is_a_mistake(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _attach(monkeypatch, H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(BadInput, match=f'H200 is here, .*CUDA_VISIBLE_DEVICES is "{value}"'):
        choose_environments(read_job("bundled:demo.yaml", ["device=auto"]), None)


@pytest.mark.parametrize(("device", "says_so"), [("auto", True), ("cpu", False)])
def test_run_that_leaves_its_device_open_says_that_it_draws_on_the_cpu(
    device: str, says_so: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _attach(monkeypatch, None)
    sentences: list[str] = []

    class Progress(NoProgress):
        def show_event(self, event: Event) -> None:
            sentences.append(event.sentence)

    prompts = write_prompts(tmp_path / "prompts.parquet", [{"prompt": "a red circle"}])
    run(job(prompts, str(tmp_path / "out"), device=device), Progress())
    assert ("No GPU here: drawing on the CPU." in sentences) == says_so


@pytest.mark.parametrize(
    ("capability", "cudnn", "warns"),
    [((9, 0), 91002, True), ((9, 0), 91500, True), ((9, 0), 91501, False), ((8, 0), 91002, False)],
)
def test_cudnn_that_is_slow_on_this_gpu_is_named_with_its_remedy(
    capability: tuple[int, int],
    cudnn: int,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    warn_of_slow_attention(torch.device("cuda"))
    expected = (
        f"Attention runs at half its speed on NVIDIA H200: cuDNN {cudnn} is older than 91501. "
        "Install nvidia-cudnn-cu12 9.15.1 or later beside PyTorch."
    )
    assert caplog.messages == ([expected] if warns else [])
