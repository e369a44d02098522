"""Why images are not ok: each cause, how many images have it, and a few of them."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import first_line
from imagekiln.steps.tally import Tally
from imagekiln.steps.visible import cut

MOST_EXAMPLES = 3
PROMPT_CHARS = 300


@dataclass(frozen=True, slots=True)
class Example:
    """One image that is not ok. `part` is where its row is; long prompts are cut."""

    image_id: str
    row: int
    part: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A reason why images are not ok, how many have it, and the first few."""

    status: str
    error: str
    images: int
    examples: tuple[Example, ...] = ()


class Causes:
    """Adds up causes shard after shard."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self._images: Tally[tuple[str, str]] = Tally()
        self._examples: dict[tuple[str, str], list[Example]] = {}

    def add(self, manifest: pa.Table) -> None:
        """Add one shard's images."""
        bad = manifest.filter(pc.is_valid(manifest["error"]))
        pairs = zip(bad["status"].to_pylist(), map(first_line, bad["error"].to_pylist()), strict=True)
        causes = list(pairs)
        self._images.add(causes)
        for place, cause in enumerate(causes):
            if cause in self._images and len(examples := self._examples.setdefault(cause, [])) < MOST_EXAMPLES:
                examples.append(_example(bad, place))
        self._examples = {cause: some for cause, some in self._examples.items() if cause in self._images}

    def failures(self, most: int) -> tuple[Failure, ...]:
        """The most frequent causes."""
        top = self._images.top(most)
        return tuple(
            Failure(status, error, images, tuple(self._examples.get((status, error), ())))
            for (status, error), images in top
        )


def _example(bad: pa.Table, place: int) -> Example:
    image_id, row, part, prompt = (bad[name][place].as_py() for name in ("image_id", "row", "part", "prompt"))
    return Example(image_id, row, part, cut(prompt, PROMPT_CHARS))
