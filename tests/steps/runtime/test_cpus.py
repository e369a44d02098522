"""How many CPUs a process counts on."""

import os
from pathlib import Path

import pytest

from imagekiln.steps.runtime.machine import available_cpus

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
NO_LIMIT = "max 100000\n"


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
