"""Why images are not ok: each cause, how many images have it, and a few of them."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.counters import TopKCounter
from imagekiln.steps.errors import first_line
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_EXAMPLES = 3
MAX_PROMPT_CHARS = 300


@dataclass(frozen=True, slots=True)
class FailureExample:
    """One image that is not ok. `part` is where its row is; long prompts are cut."""

    image_id: str
    row: int
    part: str
    prompt: str


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A reason why images are not ok, how many have it, and the first few."""

    status: str
    error: str
    images: int
    examples: tuple[FailureExample, ...] = ()


class FailureCounter:
    """Adds up causes shard after shard."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._images: TopKCounter[tuple[str, str]] = TopKCounter()
        self._examples: dict[tuple[str, str], list[FailureExample]] = {}

    def add(self, manifest: pa.Table) -> None:
        """Add one shard's images."""
        bad = manifest.filter(pc.is_valid(manifest["error"]))
        pairs = zip(
            bad["status"].to_pylist(), map(first_line, bad["error"].to_pylist()), strict=True
        )
        causes = list(pairs)
        self._images.add(causes)
        for place, cause in enumerate(causes):
            if (
                cause in self._images
                and len(examples := self._examples.setdefault(cause, [])) < MAX_EXAMPLES
            ):
                examples.append(_failure_example(bad, place))
        self._examples = {
            cause: some for cause, some in self._examples.items() if cause in self._images
        }

    def most_common(self, most: int) -> tuple[FailureCause, ...]:
        """The most frequent causes."""
        top = self._images.most_common(most)
        return tuple(
            FailureCause(status, error, images, tuple(self._examples.get((status, error), ())))
            for (status, error), images in top
        )


def _failure_example(bad: pa.Table, place: int) -> FailureExample:
    image_id, row, part, prompt = (
        bad[name][place].as_py() for name in ("image_id", "row", "part", "prompt")
    )
    return FailureExample(image_id, row, part, truncate_text(prompt, MAX_PROMPT_CHARS))
