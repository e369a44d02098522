"""Why images are not ok: each cause, how many images have it, and a few examples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.counters import TopKCounter
from imagekiln.steps.aggregate.image_counts import is_permanent
from imagekiln.steps.errors import first_line
from imagekiln.steps.job.columns import dataset_name
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runtime.sanitize import truncate_text

MAX_EXAMPLES = 3
MAX_PROMPT_CHARS = 300
MAX_CARRIED_COLUMNS = 8  # of the input, in an example
MAX_CARRIED_CHARS = 100

StatusAndError = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FailureExample:
    """One image that is not ok. `part` holds its row; long texts are truncated.

    `id` is the prompt row's own, and `carried` has the first columns that the job carries.
    """

    image_id: str
    row: int
    part: str
    prompt: str
    id: str | None = None
    carried: Mapping[str, str] = field(default_factory=dict)


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

    def __init__(self, carry: Sequence[str] = ()) -> None:
        """Begin with no failure. `carry` names the columns that the job carries."""
        columns = carry[:MAX_CARRIED_COLUMNS]
        self._carry = [dataset_name(column) for column in columns]
        self._images: TopKCounter[StatusAndError] = TopKCounter()
        self._examples: dict[StatusAndError, list[FailureExample]] = {}

    def add(self, manifest: pa.Table) -> None:
        """Add the failures of one shard."""
        has_error = pc.is_valid(manifest["error"])
        failures = manifest.filter(has_error)
        causes = _causes(failures)
        self._images.add(Counter(causes))
        for index, cause in enumerate(causes):
            examples = self._examples.setdefault(cause, [])
            is_short = len(examples) < MAX_EXAMPLES
            if is_short and cause in self._images:
                example = _failure_example(failures, index, self._carry)
                examples.append(example)
        self._forget_rare_causes()

    def _forget_rare_causes(self) -> None:
        """Drop the examples of causes that are no longer counted."""
        rare_causes = [cause for cause in self._examples if cause not in self._images]
        for cause in rare_causes:
            del self._examples[cause]

    def most_common(self, limit: int) -> tuple[FailureCause, ...]:
        """The most frequent causes."""
        return tuple(
            FailureCause(status, error, images, tuple(self._examples[status, error]))
            for (status, error), images in self._images.most_common(limit)
        )


def _causes(failures: pa.Table) -> list[StatusAndError]:
    """The cause of each of these failures."""
    statuses = failures["status"].to_pylist()
    errors = failures["error"].to_pylist()
    short_errors = map(first_line, errors)
    return list(zip(statuses, short_errors, strict=True))


def _failure_example(failures: pa.Table, index: int, carry: Sequence[str]) -> FailureExample:
    (row,) = to_rows(failures.slice(index, 1))
    return FailureExample(
        image_id=row["image_id"],
        row=row["input_row"],
        part=row["part"],
        prompt=truncate_text(row["prompt"], MAX_PROMPT_CHARS),
        id=None if row["id"] is None else truncate_text(row["id"], MAX_CARRIED_CHARS),
        carried={
            name: truncate_text(str(row[name]), MAX_CARRIED_CHARS)
            for name in carry
            if row[name] is not None
        },
    )
