"""Section `convolutions`: is one slower where a tensor has 2^31 elements or more?

SDXL's VAE has 256 channels at 1024 x 1024 pixels: 8 images are exactly 2^31 elements, from where
cuDNN needs 64-bit indices.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody imports it

from tests.bench.gpu.networks import Placement
from tests.bench.gpu.session import Session
from tests.bench.timing import median_seconds, release_memory

BATCHES = (4, 7, 8, 9)
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
KERNEL_SIDE = 3
WEIGHT_SCALE = 0.02  # so that outputs are about as large as inputs


@dataclass(frozen=True, slots=True)
class Block:
    """The shape of a convolution: pixels per side, and channels of its input and output."""

    side: int
    channels: int


VAE_BLOCK = Block(side=1024, channels=256)
TRIAL_BLOCK = Block(side=32, channels=8)


def measure_convolutions(session: Session) -> None:
    """A convolution of the VAE's last block, by layout and batch size."""
    block = VAE_BLOCK if session.on_cuda else TRIAL_BLOCK
    for name in LAYOUTS:
        rates: dict[int, float] = {}
        for batch in BATCHES:
            rates[batch] = _measure_batch(session, block, name, batch)
        session.report.figure(
            "convolutions.at_2_31",
            rates[8] / rates[7],
            "of the rate below it",
            layout=name,
        )


def _measure_batch(session: Session, block: Block, layout: str, batch: int) -> float:
    """Publish the FLOP a second for a batch, and return them."""
    rate = _rate(session.placement, block, LAYOUTS[layout], batch)
    elements = batch * block.channels * block.side**2
    session.report.figure(
        f"convolutions.{layout}",
        rate / 1e12,
        "TFLOP/s",
        batch=batch,
        from_2_31_elements=elements >= 2**31,
    )
    release_memory()
    return rate


def _rate(place: Placement, block: Block, layout: torch.memory_format, batch: int) -> float:
    channels = block.channels
    side = block.side
    weight = place.random(channels, channels, KERNEL_SIDE, KERNEL_SIDE).mul_(WEIGHT_SCALE)
    weight = weight.contiguous(memory_format=layout)
    images = place.random(batch, channels, side, side).contiguous(memory_format=layout)

    def convolve() -> torch.Tensor:
        return F.conv2d(images, weight, padding=1)

    convolve()
    seconds = median_seconds(convolve, seconds=0.5, max_calls=10)
    outputs = batch * channels * side**2
    products = channels * KERNEL_SIDE**2
    return 2 * products * outputs / seconds
