import torch

from imagekiln.steps import gauge

CPU = torch.device("cpu")


def test_the_clock_goes_on() -> None:
    assert gauge.synchronized_time(CPU) <= gauge.synchronized_time(CPU)


def test_a_device_that_shares_the_machines_memory_tells_of_none() -> None:
    gauge.reset_peak(CPU)
    assert (gauge.device_memory(CPU), gauge.peak_bytes(CPU)) == (None, None)
