"""What drawing takes: each call of a pipeline is watched from outside, and what is seen is added up."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import diffusers

from imagekiln.steps.compile_clock import Clock
from imagekiln.steps.timing import Span, Spans, Taken

Function = Callable[..., object]


class Meter:
    """Watches a pipeline, and adds up what its calls took. `add`, `text` and `taken` may be called in any thread."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        *,
        texts: bool,
        clock: Clock,
    ) -> None:
        """Find the decoder under its usual name. `texts`: the pipeline's own call encodes its texts.

        What the clock counts as compiling is not counted as drawing.
        """
        self._pipe, self._texts = pipe, texts and hasattr(pipe, "encode_prompt")
        self._vae = getattr(pipe, "vae", None)
        self._taken, self._clock = Taken(), clock
        self._lock = Lock()

    @contextmanager
    def watching(self) -> Iterator[Spans]:
        """Watch what the pipeline does in the block.

        Its parts are replaced for that long, and not hooked: a hook would become a part of what is compiled.
        """
        spans = Spans(self._pipe.device, self._clock)
        with ExitStack() as stack, spans.span("whole"):
            for owner, name, function in self._parts(spans):
                stack.enter_context(_replaced(owner, name, function))
            yield spans

    def add(self, spans: Spans) -> None:
        """Add a call that is over."""
        self._sum(spans.taken())

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

    def _parts(self, spans: Spans) -> Iterator[tuple[object, str, Function]]:
        """What to replace, and by what: no more than tells something."""
        if (decode := getattr(self._vae, "decode", None)) is not None:
            yield self._vae, "decode", _timed(decode, "decode", spans)
        if self._texts:
            yield self._pipe, "encode_prompt", _timed(self._pipe.encode_prompt, "text", spans)


def _timed(function: Function, span: Span, spans: Spans) -> Function:
    def called(*places: object, **names: object) -> object:
        with spans.span(span):
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
