"""The upper bound of any program's rate: operations per image, and operations per second.

Both are measured on the device: the floating-point operations by counting those of one batch, the
limit by multiplying large matrices of the model's dtype.
"""

import time
from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.bench.work import Untyped, Work, embedded, load, prompts, settings

SIDE = {"cuda": 8192, "cpu": 2048}  # of the matrices
TIMES = {"cuda": 20, "cpu": 5}


@dataclass(frozen=True, slots=True)
class Limit:
    """Operations of one image without text encoding, and operations per second of the device."""

    flops: float
    limit: float

    def share(self, rate: float) -> float:
        """The share of the limit that this many images per second use."""
        return self.flops * rate / self.limit


def measure_limit(work: Work) -> Limit:
    """Count the operations of an image, and measure the device's limit."""
    pipe = load(work)
    one_step = _count_flops(pipe, replace(work, batch=1, steps=1))
    two_steps = _count_flops(pipe, replace(work, batch=1, steps=2))
    flops = one_step + (work.steps - 1) * (two_steps - one_step)
    return Limit(flops, matrices(work.device, work.dtype))


def matrices(device: str, dtype: str) -> float:
    """FLOP a second of a large product of matrices, the best of many."""
    side = SIDE[device]
    one, other = (
        torch.randn(side, side, device=device, dtype=getattr(torch, dtype)) for _ in range(2)
    )
    return 2 * side**3 / min(_time_product(one, other) for _ in range(TIMES[device]))


def _time_product(one: torch.Tensor, other: torch.Tensor) -> float:
    _synchronize()
    started = time.perf_counter()
    _ = one @ other
    _synchronize()
    return time.perf_counter() - started


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _count_flops(pipe: Untyped, work: Work) -> float:
    inputs = settings(work) | embedded(pipe, prompts(work.batch))
    with FlopCounterMode(display=False) as counter:
        pipe(**inputs, output_type="pt")
    return float(counter.get_total_flops())
