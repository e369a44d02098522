"""Texts as a pipeline's own encoders embed them: once for each distinct text, and each by itself."""

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Thread

import diffusers
import torch

from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.models.families import EmbeddingIndices, Family

PromptEmbeds = tuple[torch.Tensor, ...]
MAX_CACHED_TEXTS = 256  # images of one prompt are neighbours
MAX_CACHE_BYTES = 256 << 20  # of the device's memory: SDXL takes 0.3 MB a text, FLUX.2 16 MB


class TextCache:
    """The embeddings of the latest texts. Texts are encoded one by one, so a bad one harms no other."""

    def __init__(self, encode: Callable[[str], PromptEmbeds]) -> None:
        """Take the function that encodes one text."""
        self._encode = encode
        self._known: OrderedDict[tuple[str, str | None], PromptEmbeds] = OrderedDict()

    def get(self, text: str, loras: str | None = None) -> PromptEmbeds:
        """The embeddings of one text, by encoders in which these LoRAs are in force."""
        if (text, loras) not in self._known:
            self._known[text, loras] = self._encode(text)
        self._known.move_to_end((text, loras))
        found = self._known[text, loras]
        while len(self._known) > self._capacity():
            self._known.popitem(last=False)
        return found

    def uncached(self, texts: Sequence[str], loras: str | None = None) -> list[str]:
        """Those of the texts that would have to be encoded, each once, and no more than leave room for as many."""
        return [text for text in dict.fromkeys(texts) if (text, loras) not in self._known][
            : self._capacity() // 2
        ]

    def _capacity(self) -> int:
        """How many texts are remembered: all texts of a family are about as large as the latest."""
        latest = next(reversed(self._known.values()), ())
        size = sum(tensor.nbytes for tensor in latest)
        return max(1, min(MAX_CACHED_TEXTS, MAX_CACHE_BYTES // size)) if size else MAX_CACHED_TEXTS


class PromptEncoder:
    """A family's way to call `encode_prompt`, as the pipeline itself would call it for a text alone."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, family: Family) -> None:
        """Take the settings that the pipeline's call would hand on."""
        self._pipe = pipe
        self._family = family
        called = inspect.signature(pipe.__call__).parameters
        takes = inspect.signature(pipe.encode_prompt).parameters
        self._takes = set(takes)
        unset = {name: None for name, each in takes.items() if each.default is each.empty}
        handed_on = {name: called[name].default for name in takes if name in called}
        self._settings = unset | {
            name: value for name, value in handed_on.items() if _is_setting(value)
        }

    def encode_prompt(self, text: str) -> PromptEmbeds:
        """The embeddings of a prompt, each with a leading axis of 1."""
        return self._encode(
            self._family.positive_embeds, prompt=[text], do_classifier_free_guidance=False
        )

    def encode_negative_prompt(self, text: str) -> PromptEmbeds:
        """The embeddings of a negative prompt: where it is empty, what the pipeline takes in place of one."""
        if "negative_prompt" not in self._takes:
            return self._encode(self._family.negative_embeds, prompt=[text])
        given = {"negative_prompt": [text]} if text else {}
        return self._encode(
            self._family.negative_embeds, prompt=[""], do_classifier_free_guidance=True, **given
        )

    def _encode(self, places: EmbeddingIndices, **texts: object) -> PromptEmbeds:
        asked = {"device": self._pipe.device, "num_images_per_prompt": 1, **texts}
        known = {name: value for name, value in asked.items() if name in self._takes}
        with torch.no_grad():
            encoded = self._pipe.encode_prompt(**self._settings | known)
        tensors = [encoded[place] for place in places.values()]
        return tuple(_as_tensor(tensor, tensors[0]) for tensor in tensors)


def _is_setting(value: object) -> bool:
    return value not in (None, "", inspect.Parameter.empty)


def _as_tensor(
    found: torch.Tensor | list[torch.Tensor] | None, embeds: torch.Tensor
) -> torch.Tensor:
    if found is None:  # a mask that hides nothing
        return torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device)
    return found[0][None] if isinstance(found, list) else found


def stack_embeds(each: Sequence[PromptEmbeds], length: int | None) -> list[torch.Tensor]:
    """The embeddings of a batch of texts, filled up with zeros to this many tokens."""
    if length is not None:
        each = [tuple(_pad_tokens(tensor, length) for tensor in tensors) for tensors in each]
    return [torch.cat(tensors) for tensors in zip(*each, strict=True)]


def _pad_tokens(tensor: torch.Tensor, length: int) -> torch.Tensor:
    more = tensor.new_zeros(tensor.shape[0], length - tensor.shape[1], *tensor.shape[2:])
    return torch.cat([tensor, more], dim=1)


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
            readers = (
                None if self._stream is None else torch.cuda.current_stream(self._stream.device)
            )
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
                with suppress(
                    Exception
                ):  # it fails again where the error can become the image's own
                    self._record_stream(cache.get(text, loras), readers)
                    self._told(time.perf_counter() - started)

    def _stream_context(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _record_stream(self, found: PromptEmbeds, readers: torch.cuda.Stream | None) -> None:
        if self._stream is None or readers is None:
            return
        for tensor in found:
            tensor.record_stream(
                readers
            )  # once forgotten, its memory is used again only after they have read it
        self._stream.synchronize()
