"""The GPUs of this machine as environment variables name them: by index, UUID or MIG slice."""

from collections.abc import Mapping

VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
MIG_PREFIX = "MIG-"


def visible_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """The names of the GPUs that a process with this environment may use.

    `count` is how many CUDA finds. CUDA ignores names after the first that it does not know. Of
    several MIG slices a process sees only the first, but each may go to a process of its own.
    """
    value = environment.get(VISIBLE_DEVICES_VARIABLE)
    if value is None:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in value.split(",") if name.strip()]
    if count and all(name.startswith(MIG_PREFIX) for name in names):
        return names
    return names[:count]
