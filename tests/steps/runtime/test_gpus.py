"""Which GPUs the environment lets a process use."""

import pytest

from imagekiln.steps.runtime.machine import visible_gpus


@pytest.mark.parametrize(
    ("variable", "count", "names"),
    [
        (None, 3, ["0", "1", "2"]),
        ("2, 0", 2, ["2", "0"]),
        # CUDA ignores what follows a name that it does not know
        ("MIG-1b0c,MIG-9d2e", 1, ["MIG-1b0c", "MIG-9d2e"]),  # a process sees only the first
    ],
)
def test_names_are_those_that_cuda_would_use(
    variable: str | None, count: int, names: list[str]
) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(environment, count) == names
