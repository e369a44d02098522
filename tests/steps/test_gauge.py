import torch

from imagekiln.steps import gauge

CPU = torch.device("cpu")


def test_the_clock_goes_on() -> None:
    assert gauge.now(CPU) <= gauge.now(CPU)


def test_a_device_that_shares_the_machines_memory_tells_of_none() -> None:
    gauge.forget_peak(CPU)
    assert (gauge.memory(CPU), gauge.peak(CPU)) == (None, None)
