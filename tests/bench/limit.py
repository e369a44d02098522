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
        return self.flops * rate / self.limit


def measure_limit(work: Work) -> Limit:
    """Count the operations of an image, and measure the device's limit."""
    pipe = load_pipeline(work)
    one_step = _count_flops(pipe, replace(work, batch=1, steps=1))
    two_steps = _count_flops(pipe, replace(work, batch=1, steps=2))
    step = two_steps - one_step
    flops = one_step + (work.steps - 1) * step
    return Limit(flops, matrix_flops(work.device, work.dtype))


def matrix_flops(device: str, dtype: str) -> float:
    """FLOP a second of a large product of matrices, the best of many."""
    side = SIDE[device]
    left = _random_matrix(side, device, dtype)
    right = _random_matrix(side, device, dtype)
    durations = [call_seconds(lambda: left @ right) for _ in range(PRODUCTS[device])]
    return 2 * side**3 / min(durations)


def _random_matrix(side: int, device: str, dtype: str) -> torch.Tensor:
    return torch.randn(side, side, device=device, dtype=getattr(torch, dtype))


def _count_flops(pipe: Untyped, work: Work) -> float:
    embeddings = embed_prompts(pipe, prompts(work.batch))
    settings = call_settings(work)
    with FlopCounterMode(display=False) as counter:
        pipe(**settings, **embeddings, output_type="pt")
    return float(counter.get_total_flops())
