"""Why images are not ok: each cause, how many images have it, and a few examples."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.counters import TopKCounter
from imagekiln.steps.errors import first_line
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_EXAMPLES = 3
MAX_PROMPT_CHARS = 300

StatusAndError = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FailureExample:
    """One image that is not ok. `part` holds its row; a long prompt is truncated."""

    image_id: str
    row: int
    part: str
    prompt: str


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A reason why images are not ok, how many have it, and the first few of them."""

    status: str
    error: str
    images: int
    examples: tuple[FailureExample, ...] = ()


class FailureCounter:
    """Counts causes shard by shard."""

    def __init__(self) -> None:
        """Begin with no failure."""
        self._images: TopKCounter[StatusAndError] = TopKCounter()
        self._examples: dict[StatusAndError, list[FailureExample]] = {}

    def add(self, manifest: pa.Table) -> None:
        """Add the failures of one shard."""
        failures = manifest.filter(pc.is_valid(manifest["error"]))
        errors = map(first_line, failures["error"].to_pylist())
        causes = list(zip(failures["status"].to_pylist(), errors, strict=True))
        self._images.add(causes)
        for index, cause in enumerate(causes):
            self._add_example(cause, failures, index)

        forgotten = [cause for cause in self._examples if cause not in self._images]
        for cause in forgotten:
            del self._examples[cause]

    def most_common(self, limit: int) -> tuple[FailureCause, ...]:
        """The most frequent causes."""
        return tuple(
            FailureCause(*cause, images, tuple(self._examples.get(cause, ())))
            for cause, images in self._images.most_common(limit)
        )

    def _add_example(self, cause: StatusAndError, failures: pa.Table, index: int) -> None:
        if cause not in self._images:
            return
        examples = self._examples.setdefault(cause, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(_failure_example(failures, index))


def _failure_example(failures: pa.Table, index: int) -> FailureExample:
    return FailureExample(
        image_id=failures["image_id"][index].as_py(),
        row=failures["row"][index].as_py(),
        part=failures["part"][index].as_py(),
        prompt=truncate_text(failures["prompt"][index].as_py(), MAX_PROMPT_CHARS),
    )
