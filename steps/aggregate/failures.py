"""Why images are not ok: each cause, how many images have it, and a few examples."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.counters import TopKCounter
from imagekiln.steps.errors import first_line
from imagekiln.steps.runs.permanence import is_permanent
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

    @property
    def is_permanent(self) -> bool:
        """Whether another try ends with the same error."""
        return self.status == "failed" and is_permanent(self.error)


class FailureCounter:
    """Counts causes shard by shard."""

    def __init__(self) -> None:
        """Begin with no failure."""
        self._images: TopKCounter[StatusAndError] = TopKCounter()
        self._examples: dict[StatusAndError, list[FailureExample]] = {}

    def add(self, manifest: pa.Table) -> None:
        """Add the failures of one shard."""
        has_error = pc.is_valid(manifest["error"])
        failures = manifest.filter(has_error)
        statuses = failures["status"].to_pylist()
        errors = failures["error"].to_pylist()
        causes = [
            (status, first_line(error)) for status, error in zip(statuses, errors, strict=True)
        ]
        self._images.add(causes)
        for index, cause in enumerate(causes):
            self._add_example(cause, failures, index)

        for cause in list(self._examples):
            if cause not in self._images:
                del self._examples[cause]

    def most_common(self, limit: int) -> tuple[FailureCause, ...]:
        """The most frequent causes."""
        return tuple(
            self._failure_cause(cause, images) for cause, images in self._images.most_common(limit)
        )

    def _failure_cause(self, cause: StatusAndError, images: int) -> FailureCause:
        status, error = cause
        examples = self._examples.get(cause, [])
        return FailureCause(status, error, images, tuple(examples))

    def _add_example(self, cause: StatusAndError, failures: pa.Table, index: int) -> None:
        if cause not in self._images:
            return
        examples = self._examples.setdefault(cause, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(_failure_example(failures, index))


def _failure_example(failures: pa.Table, index: int) -> FailureExample:
    (row,) = failures.slice(index, 1).to_pylist()
    return FailureExample(
        image_id=row["image_id"],
        row=row["row"],
        part=row["part"],
        prompt=truncate_text(row["prompt"], MAX_PROMPT_CHARS),
    )
