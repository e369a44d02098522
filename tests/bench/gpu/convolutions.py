"""Section `convolutions`: is one slower where a tensor has 2^31 elements or more?

SDXL's VAE has 256 channels at 1024 x 1024 pixels: 8 images are exactly 2^31 elements, from where
cuDNN needs 64-bit indices.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody imports it

from tests.bench.gpu.session import Session
from tests.bench.gpu.timing import median_seconds, release_memory

BATCHES = (4, 7, 8, 9)
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


def measure_convolutions(session: Session) -> None:
    """A convolution of the VAE's last block, by layout and batch size."""
    side, channels = (1024, 256) if session.on_cuda else (32, 8)
    for name, layout in LAYOUTS.items():
        rates: dict[int, float] = {}
        for batch in BATCHES:
            rates[batch] = _rate(session, side, channels, batch, layout)
            release_memory()
        for batch, rate in rates.items():
            elements = batch * channels * side**2
            session.report.figure(
                f"convolutions.{name}",
                rate / 1e12,
                "TFLOP/s",
                batch=batch,
                from_2_31_elements=elements >= 2**31,
            )
        session.report.figure(
            "convolutions.at_2_31", rates[8] / rates[7], "of the rate below it", layout=name
        )


def _rate(
    session: Session, side: int, channels: int, batch: int, layout: torch.memory_format
) -> float:
    place = session.placement
    weight = place.random(channels, channels, 3, 3).mul_(0.02).contiguous(memory_format=layout)
    images = place.random(batch, channels, side, side).contiguous(memory_format=layout)

    def convolve() -> torch.Tensor:
        return F.conv2d(images, weight, padding=1)

    convolve()
    seconds = median_seconds(convolve, 0.5, 10)
    return 2 * 9 * channels**2 * side**2 * batch / seconds
