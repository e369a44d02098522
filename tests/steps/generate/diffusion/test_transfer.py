"""Pixels on their way from a device whose events come when a test lets them."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event as Flag

import numpy as np
import pytest
import torch

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.profiling import Spans
from imagekiln.steps.generate.diffusion.transfer import (
    PendingBatch,
    copy_to_host,
    count_pending,
    to_uint8,
)
from tests.runs import picture


class Device:
    """An event that comes when it is let, with an error or without."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.over = Flag()
        self._fault = fault

    def synchronize(self) -> None:
        assert self.over.wait(60)
        if self._fault:
            raise self._fault


def _drawing(device: Device, count: int = 2) -> PendingBatch:
    return PendingBatch(count, device, lambda: [picture(place) for place in range(count)])


def test_how_many_pictures_there_are_is_known_before_they_are_drawn() -> None:
    drawing = _drawing(Device())
    assert len(drawing) == 2
    assert count_pending(drawing) == 2


def test_to_look_at_a_picture_waits_for_the_device() -> None:
    device = Device()
    drawing = _drawing(device)
    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(lambda: [each.index_in_part for each in drawing]) for _ in range(2)]
        assert not any(each.done() for each in looking)
        device.over.set()
        assert [each.result() for each in looking] == [[0, 1], [0, 1]]
    assert drawing[-1].index_in_part == 1
    assert [each.index_in_part for each in drawing[1:]] == [1]


@pytest.mark.parametrize(
    "fault", [torch.AcceleratorError("CUDA error: unspecified launch failure"), RuntimeError("ECC")]
)
def test_what_goes_wrong_on_the_device_meanwhile_is_to_be_tried_again(fault: Exception) -> None:
    device = Device(fault)
    device.over.set()
    drawing = _drawing(device)
    for _ in range(2):  # whoever asks, and however often
        with pytest.raises(TryAgain, match=f"the device failed .{fault}.. Run the command again"):
            list(drawing)


def test_pixels_are_rounded_and_ordered_on_the_device() -> None:
    values = torch.linspace(-0.1, 1.1, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    rgb = to_uint8(values)
    assert (rgb.shape, rgb.dtype, rgb.is_contiguous()) == ((2, 4, 5, 3), torch.uint8, True)
    assert np.array_equal(
        rgb.numpy(), (values.clamp(0, 1).permute(0, 2, 3, 1).numpy() * 255).round().astype("uint8")
    )


def test_where_devices_have_no_streams_pixels_are_there_at_once() -> None:
    images = torch.zeros(3, 3, 2, 2)
    images[1, 0, 0, 0] = float("nan")
    images[2, 0, 0, 0] = float("inf")
    spans = Spans(torch.device("cpu"))
    shot = copy_to_host(images, None, spans)
    assert shot.done_event is None
    assert shot.source == ()
    assert shot.finite.tolist() == [True, False, False]
    assert spans.times().copy > 0
