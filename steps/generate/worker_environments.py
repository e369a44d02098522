"""Which worker processes a run gets: one for each GPU, or as many as asked for on the CPU."""

import os
from collections.abc import Sequence

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.machine import (
    THREADS_VARIABLE,
    VISIBLE_DEVICES_VARIABLE,
    available_cpus,
)


def choose_environments(job: Job, gpus: int | None) -> list[dict[str, str]]:
    """What the environment of each worker has in its own way, for `gpus` GPUs or all visible ones.

    Raises BadInput where there are not so many, or the job's device is not here or cannot be used.
    """
    if job.device == "cpu":
        return _share_cpus([{}] * (gpus or 1))

    names = _visible_gpus(job.device)
    count = len(names) if gpus is None else gpus
    if count > max(1, len(names)):
        raise BadInput(
            f"--gpus {count}: {pluralize(len(names), 'GPU')} visible here. Ask for fewer, set "
            f"{VISIBLE_DEVICES_VARIABLE}, or set device: cpu for so many processes on the CPU. "
            "That is another run, since its id depends on the device."
        )
    return gpu_environments(names[:count]) if names else [{}]


def gpu_environments(names: Sequence[str]) -> list[dict[str, str]]:
    """What the environment of each worker has in its own way, where each has one of these GPUs."""
    return _share_cpus([{VISIBLE_DEVICES_VARIABLE: name} for name in names])


def _visible_gpus(device: str) -> list[str]:
    # Imported only here: torch takes seconds, and knows what CUDA, ROCm and drivers make of it.
    from imagekiln.steps.generate.diffusion.device import find_gpus
    from imagekiln.steps.generate.diffusion.device_choice import choose_kind

    try:
        kind = choose_kind(device)
    except TryAgain as error:  # another attempt would be on the same machine
        raise BadInput(*error.args) from error
    return find_gpus() if kind == "cuda" else []


def _share_cpus(environments: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The environments with an equal share of the CPUs each, unless the user sets threads."""
    if THREADS_VARIABLE in os.environ or len(environments) == 1:
        return list(environments)
    threads = max(1, available_cpus() // len(environments))
    return [{**environment, THREADS_VARIABLE: str(threads)} for environment in environments]
