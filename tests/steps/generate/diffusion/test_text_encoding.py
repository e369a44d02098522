"""Texts, embedded once each."""

import threading
from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np
import pytest
import torch

from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.generate.diffusion import text_encoding
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.text_encoding import (
    TextCache,
    TextPrefetcher,
    TextRequest,
)
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.runs.image import DrawnImage
from tests import models
from tests.models import Kind
from tests.runs import image_row
from tests.threads import threads

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

CPU = torch.device("cpu")


@pytest.fixture
def helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoding, "PREFETCH_DEVICES", {"cpu"})


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
