"""Texts that will be wanted soon are encoded while the device denoises, in a thread and on a stream of their own."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Thread

import torch

from imagekiln.steps.device import side_stream
from imagekiln.steps.embeddings import PromptEmbeds, TextCache

TextRequest = tuple[TextCache, str, str | None]  # a text, and the LoRAs in force in what encodes it


def supports_text_prefetch(device: torch.device) -> bool:
    """Whether texts can be encoded beside a batch. Elsewhere both would take from the same cores."""
    return device.type == "cuda"


class TextPrefetcher:
    """Fills caches in a thread. From `start` to `settle`, nobody else may use them, or what encodes for them."""

    def __init__(self, device: torch.device, told: Callable[[float], None]) -> None:
        """`told` is told, in the thread, what each text took in seconds."""
        self._stream = side_stream(device)
        self._helps, self._told = supports_text_prefetch(device), told
        self._thread: Thread | None = None

    def start(self, wanted: Sequence[TextRequest]) -> None:
        """Begin to encode these texts, where that helps."""
        if self._helps and wanted:
            readers = None if self._stream is None else torch.cuda.current_stream(self._stream.device)
            self._thread = Thread(target=self._encode, args=(wanted, readers), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until the texts are there. One that could not be encoded is left to whoever needs it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _encode(self, wanted: Sequence[TextRequest], readers: torch.cuda.Stream | None) -> None:
        with self._stream_context():
            for cache, text, loras in wanted:
                started = time.perf_counter()
                with suppress(Exception):  # it fails again where the error can become the image's own
                    self._record_stream(cache.get(text, loras), readers)
                    self._told(time.perf_counter() - started)

    def _stream_context(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _record_stream(self, found: PromptEmbeds, readers: torch.cuda.Stream | None) -> None:
        if self._stream is None or readers is None:
            return
        for tensor in found:
            tensor.record_stream(readers)  # once forgotten, its memory is used again only after they have read it
        self._stream.synchronize()
