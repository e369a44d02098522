"""How many CPUs a process counts on."""

import os
from pathlib import Path

import pytest

from imagekiln.steps.runtime.cpus import available_cpus

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
NO_LIMIT = "max 100000\n"


def _cgroup(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "100000 100000\n"},
        {"cpu.max": "20000 100000\n"},
        {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["version 2", "a fifth of a CPU", "version 1"],
)
def test_cpu_limit_of_a_pod_bounds_its_cpus(tmp_path: Path, files: dict[str, str]) -> None:
    assert available_cpus(_cgroup(tmp_path, files)) == 1


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "6400000 100000\n"},
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["no cgroup", "more than the machine has", "version 1, no limit"],
)
def test_without_a_limit_all_cpus_of_the_affinity_count(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert available_cpus(_cgroup(tmp_path, files)) == ALL
