import torch

from imagekiln.steps.generate.diffusion.device import (
    device_memory,
    peak_bytes,
    reset_peak,
    synchronized_time,
)

CPU = torch.device("cpu")


def test_the_clock_goes_on() -> None:
    assert synchronized_time(CPU) <= synchronized_time(CPU)


def test_a_device_that_shares_the_machines_memory_tells_of_none() -> None:
    reset_peak(CPU)
    assert (device_memory(CPU), peak_bytes(CPU)) == (None, None)
