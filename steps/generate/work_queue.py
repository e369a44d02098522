"""The work of several workers: ranges of a shard's parts, smaller toward the end of the run."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition

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


def split_work(plan: Plan, shards: Iterable[int], workers: int) -> list[WorkUnit]:
    """All parts of these shards: whole shards while there are many, then fewer parts at a time.

    So all workers end at about the same time, even if the run has a single shard.
    """
    part_counts = {shard: plan.part_count(shard) for shard in shards}
    left = sum(part_counts.values())
    units: list[WorkUnit] = []
    for shard, count in part_counts.items():
        first = 0
        while first < count:
            end = min(count, first + -(-left // (2 * workers)))
            units.append(WorkUnit(shard, first, end))
            left -= end - first
            first = end
    return units


class WorkQueue:
    """The units that no worker has made yet, for threads that each have a worker make them."""

    def __init__(self, units: Iterable[WorkUnit]) -> None:
        """Take the units in their order."""
        self._units = [*units][::-1]
        self._unfinished = len(self._units)
        self._in_work = 0
        self._attempts: Counter[WorkUnit] = Counter()
        self._is_closed = False
        self._changed = Condition()

    @property
    def is_complete(self) -> bool:
        """Whether all units are made."""
        return self._unfinished == 0

    def take(self) -> WorkUnit | None:
        """The next unit; None if none is left. Waits while others in work may be put back."""
        with self._changed:
            self._changed.wait_for(lambda: self._units or self._is_closed or not self._in_work)
            if not self._units or self._is_closed:
                return None
            self._in_work += 1
            return self._units.pop()

    def finish(self) -> None:
        """A unit is made."""
        with self._changed:
            self._unfinished -= 1
            self._in_work -= 1
            self._changed.notify_all()

    def put_back(self, unit: WorkUnit) -> None:
        """Let another worker take a unit whose worker was lost; give it up after some attempts."""
        with self._changed:
            self._attempts[unit] += 1
            if self._attempts[unit] < MAX_ATTEMPTS:
                self._units.append(unit)
            self._in_work -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Give out no more units."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
