"""Encode prompts by a pipeline's text encoders: each distinct prompt once, one at a time."""

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch

from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.generate.diffusion.patches import mark_shared
from imagekiln.steps.generate.diffusion.placing import PlacedWeights
from imagekiln.steps.models.families import EmbeddingIndices, Family
from imagekiln.steps.runs.stats import StageSeconds

TEXT_THREAD = "texts"  # the name that its thread begins with
PREFETCH_DEVICES = frozenset({"cuda"})  # on a CPU, prefetching would compete with the batch
PromptEmbeds = tuple[torch.Tensor, ...]
# The most prompts in a cache, and their bytes: SDXL takes 0.3 MB per prompt, FLUX.2 16 MB. On the
# device a few do, since images of one prompt are adjacent. The host holds those of a whole part.
DEVICE_LIMITS = (256, 256 << 20)
HOST_LIMITS = (20_000, 4 << 30)


class TextCache:
    """A cache of the embeddings of the most recent prompts.

    Prompts are encoded one by one, so that a bad one affects no other. The key must contain
    everything that changes an embedding.
    """

    def __init__(
        self, encode: Callable[[str], PromptEmbeds], limits: tuple[int, int] = DEVICE_LIMITS
    ) -> None:
        """Take the function that encodes one prompt, and the most prompts and bytes to keep."""
        self._encode = encode
        self._max_texts, self._max_bytes = limits
        self._cache: OrderedDict[tuple[str, str | None], PromptEmbeds] = OrderedDict()

    def get(self, text: str, loras: str | None = None) -> PromptEmbeds:
        """Return the embeddings of a prompt. Encode it if need be; these LoRAs must be active."""
        key = (text, loras)
        if key not in self._cache:
            self._cache[key] = self._encode(text)
        self._cache.move_to_end(key)
        embeds = self._cache[key]
        while len(self._cache) > self._capacity():
            self._cache.popitem(last=False)
        return embeds

    def uncached(self, texts: Sequence[str], loras: str | None = None) -> list[str]:
        """List the distinct prompts that are not cached, at most half of the cache's capacity."""
        uncached = [text for text in dict.fromkeys(texts) if (text, loras) not in self._cache]
        return uncached[: self._capacity() // 2]

    def _capacity(self) -> int:
        """Return the number of prompts that fit, if all are as large as the most recent one."""
        latest = next(reversed(self._cache.values()), ())
        size = sum(tensor.nbytes for tensor in latest)
        if size == 0:
            return self._max_texts
        return max(1, min(self._max_texts, self._max_bytes // size))


class PromptEncoder:
    """Calls a pipeline's `encode_prompt` as the pipeline itself would for a single prompt."""

    def __init__(self, placed: PlacedWeights, family: Family) -> None:
        """Collect the settings that the pipeline's call would pass to `encode_prompt`."""
        pipe = placed.pipe
        self._pipe = pipe
        self._placed = placed
        self._family = family
        call_parameters = inspect.signature(pipe.__call__).parameters
        parameters = inspect.signature(pipe.encode_prompt).parameters
        self._accepts = set(parameters)
        self._settings: dict[str, object] = {}
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty:
                self._settings[name] = None
            if name in call_parameters:
                default = call_parameters[name].default
                if _is_setting(default):
                    self._settings[name] = default

    def encode_prompt(self, text: str) -> PromptEmbeds:
        """Return the embeddings of a prompt, each with a leading axis of 1."""
        return self._encode(
            self._family.positive_embeds, prompt=[text], do_classifier_free_guidance=False
        )

    def encode_negative_prompt(self, text: str) -> PromptEmbeds:
        """Return the embeddings of a negative prompt; if it is empty, the pipeline's default."""
        if "negative_prompt" not in self._accepts:
            return self._encode(self._family.negative_embeds, prompt=[text])
        negative = {"negative_prompt": [text]} if text else {}
        return self._encode(
            self._family.negative_embeds, prompt=[""], do_classifier_free_guidance=True, **negative
        )

    def _encode(self, indices: EmbeddingIndices, **texts: object) -> PromptEmbeds:
        kwargs = {
            "device": self._pipe.device,
            "num_images_per_prompt": 1,
            **texts,
        }
        accepted = {name: value for name, value in kwargs.items() if name in self._accepts}
        settings = self._settings | accepted
        with torch.no_grad(), self._placed.encoders_on_device():
            encoded = self._pipe.encode_prompt(**settings)
        tensors = [encoded[index] for index in indices.values()]
        embeds = tuple(_as_tensor(tensor, tensors[0]) for tensor in tensors)
        return tuple(map(torch.Tensor.cpu, embeds)) if self._placed.takes_turns else embeds


def _is_setting(value: object) -> bool:
    return value not in (None, "", inspect.Parameter.empty)


def _as_tensor(
    tensor: torch.Tensor | list[torch.Tensor] | None, embeds: torch.Tensor
) -> torch.Tensor:
    if tensor is None:  # a mask without padding
        return torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device)
    return tensor[0][None] if isinstance(tensor, list) else tensor


def stack_embeds(embeds: Sequence[PromptEmbeds], length: int | None) -> list[torch.Tensor]:
    """Stack the embeddings of a batch of prompts, padded with zeros to `length` tokens."""
    if length is not None:
        embeds = [tuple(_pad_tokens(tensor, length) for tensor in tensors) for tensors in embeds]
    return [torch.cat(tensors) for tensors in zip(*embeds, strict=True)]


def _pad_tokens(tensor: torch.Tensor, length: int) -> torch.Tensor:
    rows, tokens, *features = tensor.shape
    padding = tensor.new_zeros(rows, length - tokens, *features)
    return torch.cat([tensor, padding], dim=1)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt to encode into a cache, and the LoRAs that are active in the text encoders."""

    cache: TextCache
    text: str
    loras: str | None


class TextPrefetcher:
    """Encodes prompts into their caches in one background thread.

    From `start` to `wait`, nothing else may use the caches or the encoders. The thread stays until
    `close`, since cuDNN builds attention plans for each thread and never frees them.
    """

    def __init__(self, device: torch.device, add: Callable[[StageSeconds], None]) -> None:
        """Take the device. `add` is called in the thread with the time of each prompt."""
        self._stream = side_stream(device)
        self._enabled = device.type in PREFETCH_DEVICES
        self._add = add
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=TEXT_THREAD)
        self._pending: list[Future[None]] = []

    def start(self, requests: Sequence[TextRequest]) -> None:
        """Begin to encode these prompts, if the device gains from it."""
        if not self._enabled:
            return
        reader = None
        if self._stream is not None:
            reader = torch.cuda.current_stream(self._stream.device)
        self._pending += [
            self._worker.submit(self._encode, request, reader) for request in requests
        ]

    def wait(self) -> None:
        """Wait for the prompts. Errors are raised by the batch that needs the failed prompt."""
        while self._pending:
            self._pending[0].result()
            del self._pending[0]

    def close(self) -> None:
        """Stop the thread after the current prompt, and drop the others."""
        self._worker.shutdown(cancel_futures=True)
        self._pending.clear()

    def _encode(self, request: TextRequest, reader: torch.cuda.Stream | None) -> None:
        started = time.perf_counter()
        # The error is raised again when an image needs the prompt.
        with suppress(Exception), self._stream_context():
            try:
                embeds = request.cache.get(request.text, request.loras)
                _keep_for(reader, embeds)
            finally:  # the prompt may be cached even if this failed
                if self._stream is not None:
                    self._stream.synchronize()
            self._add(StageSeconds(text=time.perf_counter() - started))

    def _stream_context(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _keep_for(reader: torch.cuda.Stream | None, embeds: PromptEmbeds) -> None:
    """Prevent reuse of the embeddings' memory before the stream `reader` has read them."""
    for tensor in embeds:
        if reader is not None and tensor.is_cuda:
            mark_shared(tensor).record_stream(reader)
