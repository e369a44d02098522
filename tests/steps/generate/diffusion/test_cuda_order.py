"""On CUDA nothing is read before it is complete. A stand-in for CUDA on a CPU watches the order."""

import gc
import time
from collections.abc import Callable

import pytest
import torch

from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.generate.diffusion.profiling import Spans
from imagekiln.steps.generate.diffusion.text_encoding import (
    TextCache,
    TextPrefetcher,
    TextRequest,
)
from imagekiln.steps.generate.diffusion.transfer import PendingBatch, copy_to_host
from tests.cuda import CUDA, Cuda, install
from tests.runs import picture


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A CUDA without faults."""
    return install(monkeypatch)


def _start_copy(cuda: Cuda) -> Callable[[], list[float]]:
    """Two images on their way to the host, and what reads them there."""
    images = cuda.on_device(torch.rand(2, 3, 4, 4))
    shot = copy_to_host(images, side_stream(CUDA), Spans(torch.device("cpu")))
    assert shot.done_event is not None

    def read() -> list[float]:
        return [*shot.finite.tolist(), float(shot.rgb.numpy().mean())]

    pending = PendingBatch(2, shot.done_event, lambda: [picture(int(each)) for each in read()[:2]])
    return lambda: [image.index_in_part for image in pending]


def test_pixels_are_read_once_their_copy_is_complete(cuda: Cuda) -> None:
    assert _start_copy(cuda)() == [1, 1]
    assert cuda.races == []


def test_next_batch_may_be_queued_before_the_pixels_of_the_last_are_read(cuda: Cuda) -> None:
    first = _start_copy(cuda)
    second = _start_copy(cuda)
    assert second() == first() == [1, 1]
    assert cuda.races == []


def test_pixels_that_nobody_reads_are_not_overwritten_while_they_are_start_copy(cuda: Cuda) -> None:
    images = cuda.on_device(torch.rand(2, 3, 4, 4))
    shot = copy_to_host(images, side_stream(CUDA), Spans(torch.device("cpu")))
    del images
    assert cuda.races == []
    assert shot.done_event is not None
    shot.done_event.synchronize()
    del shot
    assert cuda.races == []


def test_texts_are_used_once_they_are_encoded(cuda: Cuda) -> None:
    encoded = list[str]()

    def encode(text: str) -> tuple[torch.Tensor, ...]:
        encoded.append(text)
        time.sleep(0.1)  # whoever does not wait is early
        return (cuda.on_device(torch.ones(1, 3)) * len(text),)

    cache = TextCache(encode)
    prefetcher = TextPrefetcher(CUDA, lambda _: None)
    prefetcher.start([TextRequest(cache, text, None) for text in ("a", "bc")])
    prefetcher.wait()
    assert cache.uncached(["a", "bc", "def"]) == ["def"]
    sums = [cache.get(text)[0].sum() for text in ("a", "bc", "def")]
    assert [value.item() for value in sums] == [3, 6, 9]
    assert encoded == ["a", "bc", "def"]
    assert cuda.races == []


def test_texts_that_the_cache_drops_outlive_the_batches_that_read_them(cuda: Cuda) -> None:
    cache = TextCache(lambda _: (cuda.on_device(torch.ones(1, 3)),))
    prefetcher = TextPrefetcher(CUDA, lambda _: None)
    prefetcher.start([TextRequest(cache, "a", None)])
    prefetcher.wait()
    cache.get("a")[0].sum()
    del cache, prefetcher
    gc.collect()
    assert cuda.races == []


def test_times_of_the_device_are_read_once_its_events_have_come(cuda: Cuda) -> None:
    spans = Spans(CUDA)
    with spans.span("whole"), spans.span("text"):
        cuda.on_device(torch.ones(1))
    stream = side_stream(CUDA)
    assert stream is not None
    with torch.cuda.stream(stream), spans.span("copy"):
        cuda.on_device(torch.ones(1))
    times = spans.times()
    assert (times.busy, times.text, times.copy) == (0.001, 0.001, 0.001)
    assert cuda.races == []
