"""What a process counts on of its machine, and what its libraries are told."""

import os
from pathlib import Path

import pytest

from imagekiln.steps.runtime.machine import (
    available_cpus,
    find_nvidia_gpu,
    limit_spinning,
    visible_gpus,
)

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
NO_LIMIT = "max 100000\n"
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def _cgroup(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


@pytest.mark.parametrize("limit", ["100000 100000\n", "20000 100000\n"])
def test_cpu_limit_of_a_pod_bounds_its_cpus(tmp_path: Path, limit: str) -> None:
    assert available_cpus(_cgroup(tmp_path, {"cpu.max": limit})) == 1


@pytest.mark.parametrize("files", [{}, {"cpu.max": NO_LIMIT}, {"cpu.max": "6400000 100000\n"}])
def test_without_a_limit_all_cpus_of_the_affinity_count(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert available_cpus(_cgroup(tmp_path, files)) == ALL


@pytest.mark.parametrize(
    ("variable", "count", "names"),
    [
        (None, 3, ["0", "1", "2"]),
        ("2, 0", 2, ["2", "0"]),
        ("-1", 1, []),
        ("0,none,1", 2, ["0"]),
        # CUDA ignores what follows a name that it does not know
        ("MIG-1b0c,MIG-9d2e", 1, ["MIG-1b0c", "MIG-9d2e"]),  # a process sees only the first
    ],
)
def test_names_are_those_that_cuda_would_use(
    variable: str | None, count: int, names: list[str]
) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(environment, count) == names


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "ACTIVE")
    limit_spinning()
    assert {each: os.environ[each] for each in VARIABLES if each in os.environ} == {name: "ACTIVE"}


def test_gpu_of_the_machine_is_known_by_its_device_file(tmp_path: Path) -> None:
    assert find_nvidia_gpu(tmp_path) is None
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_nvidia_gpu(tmp_path) == str(tmp_path / "nvidia0")
