"""Texts, embedded once each."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.generate.diffusion import text_encoding
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.text_encoding import (
    TextCache,
    TextPrefetcher,
    TextRequest,
    stack_embeds,
    synchronized,
)
from imagekiln.steps.generate.step import generate_shard
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.runs.image import DrawnImage
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import models
from tests.faults import manifests
from tests.models import Kind
from tests.runs import image_row, planned
from tests.threads import threads


class Encoder:
    """Encodes a text as its length, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> tuple[torch.Tensor, ...]:
        self.asked.append(text)
        return torch.full((1, 3), len(text)), torch.full((1,), -len(text))


def test_texts_are_stacked_in_the_order_of_the_batch() -> None:
    cache = TextCache(Encoder())
    one, two = stack_embeds([cache.get(text) for text in ("a", "bb", "a")], None)
    assert one.tolist() == [[1, 1, 1], [2, 2, 2], [1, 1, 1]]
    assert two.tolist() == [-1, -2, -1]


def test_a_text_is_encoded_once() -> None:
    encoder = Encoder()
    cache = TextCache(encoder)
    for _ in range(3):
        for text in ("a", "bb", "a"):
            cache.get(text)
    assert encoder.asked == ["a", "bb"]


@pytest.mark.parametrize(
    ("limit", "asked"), [(64, ["a", "bb"]), (63, ["a", "bb", "a"]), (1, ["a", "bb", "a"])]
)
def test_no_more_is_remembered_than_the_device_has_room_for(
    monkeypatch: pytest.MonkeyPatch, limit: int, asked: list[str]
) -> None:
    monkeypatch.setattr(text_encoding, "MAX_CACHE_BYTES", limit)
    encoder = Encoder()
    cache = TextCache(encoder)
    for text in ("a", "bb", "a"):
        cache.get(text)
    assert encoder.asked == asked


pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

CPU = torch.device("cpu")


@pytest.fixture
def helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoding, "supports_text_prefetch", lambda _: True)


def _denoiser(
    kind: Kind, bad: str = "-", speed: SpeedSettings | None = None
) -> tuple[Denoiser, list[tuple[str, bool]]]:
    """A denoiser, and what its encoder is asked for: each text, and whether in the main thread."""
    pipe, asked = models.pipe(kind), list[tuple[str, bool]]()
    encode: Callable[..., object] = pipe.encode_prompt

    @wraps(encode)
    def watched(prompt: list[str] | None, *places: object, **names: object) -> object:
        if prompt is not None:  # the pipeline's own call has the embeddings
            asked.append((prompt[0], threading.current_thread() is threading.main_thread()))
            if prompt[0] == bad:
                raise IndexError("a token out of range")
        return encode(prompt, *places, **names)

    pipe.encode_prompt = watched
    return Denoiser(pipe, speed), asked


def _same(ones: Sequence[DrawnImage], others: Sequence[DrawnImage]) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(np.array_equal(one.rgb, other.rgb) for one, other in pairs if one.rgb is not None)  # type: ignore[arg-type]  # there, as the others' is


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["sd", "sdxl", "flux"])
@pytest.mark.usefixtures("helps")
def test_texts_of_the_batch_to_come_are_encoded_beside_this_one_and_pictures_stay_the_same(
    kind: Kind,
) -> None:
    rows = [
        image_row(f"number {place}", place, negative_prompt=f"not {place}") for place in range(4)
    ]
    plain = Denoiser(models.pipe(kind))
    denoiser, asked = _denoiser(kind)
    denoiser.set_upcoming(rows[2:])
    first = denoiser.draw(rows[:2], 2, lambda: None)
    second = denoiser.draw(rows[2:], 2, lambda: None)
    assert _same([*first, *second], [plain.draw([row], 2, lambda: None)[0] for row in rows])
    assert {text for text, main in asked if text.startswith("number") and not main} == {
        "number 2",
        "number 3",
    }
    prompts = [text for text, _ in asked if text.startswith("number")]
    assert len(prompts) == len(set(prompts)) == 4, "a text was encoded twice"


@pytest.mark.usefixtures("helps")
def test_rows_of_another_shape_are_not_encoded_ahead() -> None:
    denoiser, asked = _denoiser("sd")
    denoiser.set_upcoming([image_row("wide", width=32), image_row("like it")])
    denoiser.draw([image_row("now")], 1, lambda: None)
    denoiser.pop_times()  # waits for what is going on
    assert ("like it", False) in asked
    assert ("wide", False) not in asked


@pytest.mark.usefixtures("helps")
def test_a_bad_text_fails_alone_though_it_was_encoded_ahead(tmp_path: Path) -> None:
    rows = [{"prompt": f"number {place}"} for place in range(8)]
    there = planned(
        tmp_path, str(tmp_path / "out"), rows, shard={"images": 100}, batch={"images": 2}
    )
    denoiser, asked = _denoiser("sd", bad="number 5")
    before = threads()
    store = open_store(there.uri)
    with closing(denoiser):
        done = generate_shard(store, there.plan, 0, lambda: denoiser, NoProgress(), Stop())
    assert done is not None
    assert not threads() - before
    assert ("number 5", False) in asked
    aggregate(there.uri, failed_share=1.0)
    (failed,) = [row for row in manifests(there.uri) if row["status"] != "ok"]
    assert (failed["prompt"], failed["status"]) == ("number 5", "failed")
    assert failed["error"] == "IndexError: a token out of range"


@pytest.mark.slow
@pytest.mark.usefixtures("helps")
def test_nothing_is_encoded_beside_a_batch_that_is_being_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_module, "COMPILE_OPTIONS", {"backend": "eager"})
    torch.compiler.reset()
    denoiser, asked = _denoiser("sd", speed=SpeedSettings(compile="on"))
    for name in ("first", "second"):
        denoiser.set_upcoming([image_row(f"after the {name}")])
        denoiser.draw([image_row(name)], 1, lambda: None)
    denoiser.pop_times()
    assert [text for text, main in asked if text.startswith("after") and not main] == [
        "after the second"
    ]


def test_a_cpu_has_no_thread_for_it() -> None:
    denoiser, asked = _denoiser("sd")
    denoiser.set_upcoming([image_row("next")])
    denoiser.draw([image_row("now")], 1, lambda: None)
    assert {main for _, main in asked} == {True}
    assert "next" not in {text for text, _ in asked}


class WatchedEncoder:
    """Encodes texts in threads that it remembers. The text "slow" waits until it is released."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.texts: list[str] = []
        self.begun = threading.Event()
        self.released = threading.Event()

    def __call__(self, text: str) -> tuple[torch.Tensor, ...]:
        self.threads.append(threading.current_thread())
        if text == "slow":
            self.begun.set()
            assert self.released.wait(60)
        self.texts.append(text)
        return (torch.zeros(1),)


def _requests(cache: TextCache, *texts: str) -> list[TextRequest]:
    return [TextRequest(cache, text, None) for text in texts]


@pytest.mark.usefixtures("helps")
def test_all_texts_are_encoded_in_one_thread_that_ends_when_closed() -> None:
    encoder = WatchedEncoder()
    cache = TextCache(encoder)
    before = threads()
    ahead = TextPrefetcher(CPU, lambda _: None)
    for batch in range(20):
        ahead.start(_requests(cache, f"{batch} a", f"{batch} b"))
        ahead.wait()
    assert len(encoder.texts) == 40
    assert len({id(thread) for thread in encoder.threads}) == 1
    assert len(threads() - before) == 1
    ahead.close()
    assert not threads() - before


class Queue:
    """A stream of a device, which remembers how often it was waited for."""

    waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def test_a_text_that_is_queued_on_the_device_is_waited_for_even_after_an_error() -> None:
    stream = Queue()
    with synchronized(stream):
        pass
    with pytest.raises(LookupError), synchronized(stream):
        raise LookupError
    assert stream.waits == 2
