"""What drawing takes: each call of a pipeline is watched from outside, and what is seen is added up."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import diffusers

from imagekiln.steps.compile_clock import CompileClock
from imagekiln.steps.timing import DeviceTimes, SpanName, Spans

AnyFunction = Callable[..., object]


class PipelineProfiler:
    """Watches a pipeline, and adds up what its calls took. `add`, `text` and `taken` may be called in any thread."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        *,
        texts: bool,
        clock: CompileClock,
    ) -> None:
        """Find the decoder under its usual name. `texts`: the pipeline's own call encodes its texts.

        What the clock counts as compiling is not counted as drawing.
        """
        self._pipe, self._texts = pipe, texts and hasattr(pipe, "encode_prompt")
        self._vae = getattr(pipe, "vae", None)
        self._taken, self._clock = DeviceTimes(), clock
        self._lock = Lock()

    @contextmanager
    def profile_call(self) -> Iterator[Spans]:
        """Watch what the pipeline does in the block.

        Its parts are replaced for that long, and not hooked: a hook would become a part of what is compiled.
        """
        spans = Spans(self._pipe.device, self._clock)
        with ExitStack() as stack, spans.span("whole"):
            for owner, name, function in self._replacements(spans):
                stack.enter_context(_patch_attribute(owner, name, function))
            yield spans

    def add_call(self, spans: Spans) -> None:
        """Add a call that is over."""
        self._add_times(spans.times())

    def add_text(self, seconds: float) -> None:
        """Add the time of a text that was encoded beside the batches."""
        self._add_times(DeviceTimes(text=seconds))

    def pop_times(self) -> DeviceTimes:
        """What was added since this was last asked."""
        with self._lock:
            found, self._taken = self._taken, DeviceTimes()
        return found

    def _add_times(self, more: DeviceTimes) -> None:
        with self._lock:
            self._taken += more

    def _replacements(self, spans: Spans) -> Iterator[tuple[object, str, AnyFunction]]:
        """What to replace, and by what: no more than tells something."""
        if (decode := getattr(self._vae, "decode", None)) is not None:
            yield self._vae, "decode", _with_span(decode, "decode", spans)
        if self._texts:
            yield self._pipe, "encode_prompt", _with_span(self._pipe.encode_prompt, "text", spans)


def _with_span(function: AnyFunction, span: SpanName, spans: Spans) -> AnyFunction:
    def called(*places: object, **names: object) -> object:
        with spans.span(span):
            return function(*places, **names)

    return called


@contextmanager
def _patch_attribute(owner: object, name: str, function: AnyFunction) -> Iterator[None]:
    """Put a function in the place of an object's own. Past `__setattr__`, which wrappers of modules hand on."""
    own = vars(owner)
    before = {name: own[name]} if name in own else {}
    own[name] = function
    try:
        yield
    finally:
        del own[name]
        own.update(before)
