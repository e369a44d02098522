"""The work of several workers: ranges of a shard's parts, smaller toward the end of the run."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from imagekiln.steps.runs.plan import Plan

MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Parts of one shard, from `first_part` to before `end_part`."""

    shard: int
    first_part: int
    end_part: int

    @property
    def parts(self) -> slice:
        """The parts as a slice of all parts of the shard."""
        return slice(self.first_part, self.end_part)


class WorkQueue:
    """The parts that no worker has taken yet.

    Workers take whole shards while there are many. Toward the end they take fewer parts at a time,
    so that all end at about the same time, even where the run has a single shard.
    """

    def __init__(self, plan: Plan, shards: Iterable[int], workers: int) -> None:
        """Take all parts of these shards."""
        self._workers = workers
        self._ranges = [WorkUnit(shard, 0, plan.part_count(shard)) for shard in shards]
        self._ranges.reverse()  # the next one is the last, where a list is cheap to change
        self._parts_left = sum(unit.end_part for unit in self._ranges)
        self._returned: list[WorkUnit] = []
        self._attempts: Counter[WorkUnit] = Counter()
        self.given_up: list[WorkUnit] = []

    @property
    def is_empty(self) -> bool:
        """Whether workers have taken all parts."""
        return not self._ranges and not self._returned

    def take(self) -> WorkUnit | None:
        """The next unit; None where all are taken."""
        if self._returned:
            return self._returned.pop()
        if not self._ranges:
            return None

        whole = self._ranges.pop()
        fair_share = -(-self._parts_left // (2 * self._workers))
        end = min(whole.end_part, whole.first_part + fair_share)
        if end < whole.end_part:
            self._ranges.append(WorkUnit(whole.shard, end, whole.end_part))
        self._parts_left -= end - whole.first_part
        return WorkUnit(whole.shard, whole.first_part, end)

    def put_back(self, unit: WorkUnit) -> None:
        """Let another worker take a unit whose worker was lost; give it up after some attempts."""
        self._attempts[unit] += 1
        if self._attempts[unit] < MAX_ATTEMPTS:
            self._returned.append(unit)
        else:
            self.given_up.append(unit)
