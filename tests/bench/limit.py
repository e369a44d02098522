"""The upper bound of any program's rate: operations per image, and operations per second.

Both are measured on the device: the floating-point operations by counting those of one batch, the
limit by multiplying large matrices of the model's dtype.
"""

from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.bench.timing import call_seconds
from tests.bench.work import Untyped, Work, call_settings, embed_prompts, load_pipeline, prompts

SIDE = {"cuda": 8192, "cpu": 2048}  # of the matrices
PRODUCTS = {"cuda": 20, "cpu": 5}


@dataclass(frozen=True, slots=True)
class Limit:
    """Operations of one image without text encoding, and operations per second of the device."""

    flops: float
    limit: float

    def share(self, rate: float) -> float:
        """The share of the limit that this many images per second use."""
        used = self.flops * rate
        return used / self.limit


def measure_limit(work: Work) -> Limit:
    """Count the operations of an image, and measure the device's limit."""
    pipe = load_pipeline(work)
    single = replace(work, batch=1)
    one_step = _count_flops(pipe, single, steps=1)
    two_steps = _count_flops(pipe, single, steps=2)
    further_steps = work.steps - 1
    flops = one_step + further_steps * (two_steps - one_step)
    limit = matrix_flops(work.device, work.dtype)
    return Limit(flops, limit)


def matrix_flops(device: str, dtype: str) -> float:
    """FLOP a second of a large product of matrices, the best of many."""
    side = SIDE[device]
    left = _random_matrix(side, device, dtype)
    right = _random_matrix(side, device, dtype)
    durations: list[float] = []
    for _ in range(PRODUCTS[device]):
        seconds = call_seconds(lambda: left @ right)
        durations.append(seconds)
    flops = 2 * side**3
    return flops / min(durations)


def _random_matrix(side: int, device: str, dtype: str) -> torch.Tensor:
    return torch.randn(
        (side, side),
        device=device,
        dtype=getattr(torch, dtype),
    )


def _count_flops(pipe: Untyped, work: Work, steps: int) -> float:
    settings = call_settings(replace(work, steps=steps))
    texts = prompts(work.batch)
    embeddings = embed_prompts(pipe, texts)
    with FlopCounterMode(display=False) as counter:
        pipe(**settings, **embeddings, output_type="pt")
    return float(counter.get_total_flops())
