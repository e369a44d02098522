"""Which workers a run gets on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.worker_environments import choose_environments, gpu_environments
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.local import preview, run
from imagekiln.steps.runtime.machine import available_cpus


def _job(device: str) -> Job:
    return read_job("bundled:demo.yaml", [f"device={device}"])


def test_run_on_the_cpu_has_one_worker_unless_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert choose_environments(_job("cpu"), None) == [{}]
    threads = str(max(1, available_cpus() // 3))
    assert choose_environments(_job("cpu"), 3) == [{"OMP_NUM_THREADS": threads}] * 3


def test_each_worker_sees_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert gpu_environments(["GPU-3f8a", "2"]) == [
        {"CUDA_VISIBLE_DEVICES": "GPU-3f8a"},
        {"CUDA_VISIBLE_DEVICES": "2"},
    ]


def test_more_gpus_than_there_are_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_environments(_job("auto"), None) == [{}]
    assert choose_environments(_job("auto"), 1) == [{}]
    with pytest.raises(
        BadInput, match=r"--gpus 3: 0 GPUs visible here\. .*device: cpu .*another run"
    ):
        choose_environments(_job("auto"), 3)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", r"'cuda' (is not there|cannot be used)"),
        ("mps", r"device 'mps' (cannot be used|is not there)"),
    ],
)
@pytest.mark.parametrize("command", [run, preview])
def test_device_that_is_not_here_is_a_mistake_before_anything_is_planned(
    command: Callable[[Job], object],
    device: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    job = read_job("bundled:demo.yaml", [f"device={device}", f"output={tmp_path / 'out'}"])
    with pytest.raises(BadInput, match=message):
        command(job)
    assert not (tmp_path / "out").exists()
