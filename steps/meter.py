"""What drawing takes: each call of a pipeline is watched from outside, and what is seen is added up."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import diffusers
import torch

from imagekiln.steps.compile_clock import Clock
from imagekiln.steps.flops import Call, Flops, Part, worth_it
from imagekiln.steps.timing import Span, Spans, Taken

DENOISERS = ("unet", "transformer")
DECODERS = ("vae", "movq")
DENOISING: tuple[Part, ...] = ("denoiser", "refiner")
Function = Callable[..., object]


class Watched:
    """What was seen of one call of the pipeline: its spans, and the calls of its models."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        """Begin with nothing seen."""
        self.spans = Spans(device, clock)
        self.calls: list[Call] = []


class Meter:
    """Watches a pipeline, and adds up what its calls took. `add`, `text` and `taken` may be called in any thread."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        *,
        texts: bool,
        clock: Clock,
        refiner: diffusers.DiffusionPipeline | None = None,
        computed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Find the models under their usual names. `texts`: the pipeline's own call encodes its texts.

        What the clock counts as compiling is not counted as drawing. A `refiner` draws the last steps and decodes.
        `computed` tells, after each call of the denoiser, whether it was computed and not foretold.
        """
        self._pipe, self._texts = pipe, texts and hasattr(pipe, "encode_prompt")
        self._models: dict[Part, torch.nn.Module | None] = {
            "denoiser": _first(pipe, DENOISERS),
            "refiner": None if refiner is None else _first(refiner, DENOISERS),
            "decoder": _first(pipe if refiner is None else refiner, DECODERS),
        }
        self._flops = Flops(self._models) if worth_it(pipe.device) else None
        self._computed = computed
        self._taken, self._clock = Taken(), clock
        self._lock = Lock()

    @property
    def dtype(self) -> str:
        """What the denoiser computes in, by its name."""
        denoiser = self._models["denoiser"]
        model = self._pipe if denoiser is None else denoiser
        return str(model.dtype).removeprefix("torch.")

    @contextmanager
    def watching(self) -> Iterator[Watched]:
        """Watch what the pipeline does in the block.

        Its parts are replaced for that long, and not hooked: a hook would become a part of what is compiled.
        """
        watched = Watched(self._pipe.device, self._clock)
        with ExitStack() as stack, watched.spans.span("whole"):
            for owner, name, function in self._parts(watched):
                stack.enter_context(_replaced(owner, name, function))
            yield watched

    def count(self) -> None:
        """Count the operations of shapes that are new: best done while the device is at a batch."""
        if self._flops is not None:
            self._flops.count()

    def add(self, watched: Watched, share: float) -> None:
        """Add a call that is over. `share` of its images were asked for; the others filled up the batch."""
        flops = None if self._flops is None else self._flops.sum(watched.calls)
        self._sum(watched.spans.taken() + Taken(flops=None if flops is None else share * flops))

    def text(self, seconds: float) -> None:
        """Add the time of a text that was encoded beside the batches."""
        self._sum(Taken(text=seconds))

    def taken(self) -> Taken:
        """What was added since this was last asked."""
        with self._lock:
            found, self._taken = self._taken, Taken()
        return found

    def _sum(self, more: Taken) -> None:
        with self._lock:
            self._taken += more

    def _parts(self, watched: Watched) -> Iterator[tuple[object, str, Function]]:
        """What to replace, and by what: no more than tells something."""
        for part in DENOISING:
            if (network := self._models[part]) is not None and self._flops is not None:
                # The one place that compiled and plain modules are both called by.
                called: Function = network._compiled_call_impl or network._call_impl
                yield network, "_compiled_call_impl", self._noted(called, part, watched)
        decoder = self._models["decoder"]
        if (decode := getattr(decoder, "decode", None)) is not None:
            yield decoder, "decode", _timed(self._noted(decode, "decoder", watched), "decode", watched)
        if self._texts:
            yield self._pipe, "encode_prompt", _timed(self._pipe.encode_prompt, "text", watched)

    def _noted(self, function: Function, part: Part, watched: Watched) -> Function:
        flops = self._flops
        if flops is None:
            return function

        def called(*places: object, **names: object) -> object:
            call = flops.note(part, places, names)
            given = function(*places, **names)
            if part != "denoiser" or self._computed():
                watched.calls.append(call)
            return given

        return called


def _timed(function: Function, span: Span, watched: Watched) -> Function:
    def called(*places: object, **names: object) -> object:
        with watched.spans.span(span):
            return function(*places, **names)

    return called


@contextmanager
def _replaced(owner: object, name: str, function: Function) -> Iterator[None]:
    """Put a function in the place of an object's own. Past `__setattr__`, which wrappers of modules hand on."""
    own = vars(owner)
    before = {name: own[name]} if name in own else {}
    own[name] = function
    try:
        yield
    finally:
        del own[name]
        own.update(before)


def _first(pipe: diffusers.DiffusionPipeline, names: tuple[str, ...]) -> torch.nn.Module | None:
    found = (getattr(pipe, name, None) for name in names)
    return next((each for each in found if isinstance(each, torch.nn.Module)), None)
