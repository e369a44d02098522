"""The commits of a run: objects that are created once, under consecutive numbers.

The highest commit is the run. Readers take it and the metadata that it names, which never changes.
Whoever has something to add writes objects under new names first, and then creates the next commit.
Whoever loses that number starts over from the commit that won it.

Metadata has its digest in its name, so two writers share an object only if the bytes are equal.
Images are written only under names that the plan or a commit has announced.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, FailFast, Field, JsonValue, TypeAdapter

from imagekiln.steps.errors import BadInput, TryAgain, version_error
from imagekiln.steps.runs.attempts import Terms
from imagekiln.steps.runs.keys import METADATA_KEY_PATTERN, PART_KEY_PATTERN, commit_key
from imagekiln.steps.runs.plan import PLAN_SCHEMA_VERSION, Plan, PlanCounts, Shard, parse_json
from imagekiln.steps.runs.stats import Count, RunRate
from imagekiln.steps.storage.store import Store

CommitKind = Literal["aggregate", "terms", "retry", "forget", "forgotten", "removed"]
MetadataKey = Annotated[str, Field(pattern=METADATA_KEY_PATTERN)]
PartKey = Annotated[str, Field(pattern=PART_KEY_PATTERN)]
MetadataKeys = Annotated[tuple[MetadataKey, ...], FailFast()]
PartKeys = Annotated[tuple[PartKey, ...], FailFast()]
MAX_TRIES = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry, by the number of the commit that announced it.

    `source_shards` has, for each of its shards, the first and the last shard of the run that images
    come from. `is_counted` says that the manifest has all of its parts.
    """

    number: Count
    created_at: AwareDatetime
    shards: Annotated[tuple[Shard, ...], FailFast()]
    source_shards: Annotated[tuple[tuple[Count, Count], ...], FailFast()]
    truncated_prompts: Count
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Takedown:
    """Images that are about to be forgotten, by the number of the commit that announced it.

    `ids` is a table of all ids that are forgotten then, `parts` are the parts that hold some.
    """

    number: Count
    ids: MetadataKey
    parts: PartKeys


@dataclass(frozen=True, slots=True)
class Commit:
    """The state of a run.

    `manifests` are the keys of the manifests by shard, none before the run is first aggregated.
    `forgotten` is a table of the ids that were taken down. `buried` names hold no images any more,
    and never will. `is_complete` says that no part is left to make, of the job or of a retry,
    `is_finished` that the run is as its job asks. `summary` has the counts and times, `rate` what
    later runs are estimated by.
    """

    schema_version: int
    kind: CommitKind
    at: float
    manifests: MetadataKeys = ()
    retries: tuple[Retry, ...] = ()
    forgotten: MetadataKey | None = None
    takedown: Takedown | None = None
    buried: PartKeys = ()
    is_complete: bool = False
    is_finished: bool = False
    terms: Terms | None = None
    rate: RunRate | None = None
    summary: dict[str, JsonValue] = field(default_factory=dict)


NO_COMMIT = Commit(PLAN_SCHEMA_VERSION, "aggregate", 0.0)


@dataclass(frozen=True, slots=True)
class Head:
    """The highest commit of a run and its number, which is -1 before there is any."""

    number: int = -1
    commit: Commit = NO_COMMIT

    @property
    def is_removed(self) -> bool:
        """Tell if the run was removed."""
        return self.commit.kind == "removed"

    @property
    def uncounted_retry(self) -> Retry | None:
        """The retry whose parts are still to be made or counted, if there is one."""
        return next((retry for retry in self.commit.retries if not retry.is_counted), None)


COMMIT_TYPE_ADAPTER: TypeAdapter[Commit] = TypeAdapter(Commit)


def read_head(store: Store) -> Head:
    """The highest commit of the run in `store`. Raises BadInput on damage, TryAgain."""
    number = count_entries(store, commit_key) - 1
    if number < 0:
        return Head()
    return Head(number, read_commit(store, number))


def read_present_head(store: Store) -> Head:
    """The highest commit of a run that was not removed. Raises BadInput, TryAgain."""
    head = read_head(store)
    if head.is_removed:
        raise BadInput(
            f"{store.uri}: was removed by `imagekiln gc`. Choose another run_id or --date."
        )
    return head


def read_commit(store: Store, number: int) -> Commit:
    """The commit of this number. Raises Missing, or BadInput if it is damaged."""
    key = commit_key(number)
    where = store.uri_of(key)
    commit = parse_json(COMMIT_TYPE_ADAPTER, store.read(key), where, "commit")
    if commit.schema_version != PLAN_SCHEMA_VERSION:
        raise version_error(where, commit.schema_version, PLAN_SCHEMA_VERSION)
    return commit


def is_highest(store: Store, head: Head) -> bool:
    """Tell if there is no higher commit than this one."""
    return not store.exists(commit_key(head.number + 1))


def create_commit(store: Store, head: Head, commit: Commit) -> Head | None:
    """Create the commit after `head`; None if another process has the number. Raises TryAgain."""
    commit = replace(commit, at=time.time())
    number = head.number + 1
    content = COMMIT_TYPE_ADAPTER.dump_json(commit) + b"\n"
    key = commit_key(number)
    if store.create(key, content):
        return Head(number, commit)
    return None


def commit_next(store: Store, attempt: Callable[[Head], T | None]) -> T:
    """Call `attempt` with the highest commit until it returns something.

    None asks for another look at the highest commit, which is no longer the one that was passed.
    Raises TryAgain if that happens again and again, BadInput if the run was removed.
    """
    for _ in range(MAX_TRIES):
        head = read_present_head(store)
        try:
            result = attempt(head)
        except BadInput:
            if is_highest(store, head):
                raise
            continue  # it is no damage: what the commit names was buried, or removed, meanwhile
        if result is not None:
            return result
    raise TryAgain(f"{store.uri}: other processes keep changing this run. Run the command again.")


def digest_of(content: bytes) -> str:
    """The digest of an object, which is a part of its name."""
    return hashlib.sha256(content).hexdigest()


def plan_of_retry(plan: Plan, retry: Retry) -> Plan:
    """The plan of a run as that of one of its retries."""
    return replace(
        plan,
        created_at=retry.created_at,
        counts=PlanCounts(
            rejected_rows=0,
            images=sum(shard.images for shard in retry.shards),
            duplicate_images=0,
            truncated_prompts=retry.truncated_prompts,
        ),
        shards=retry.shards,
        retry=retry.number,
        source_shards=retry.source_shards,
        sample_images=0,
    )


def count_entries(store: Store, key_of: Callable[[int], str]) -> int:
    """Count objects with consecutive numbers.

    First looks for a free number in growing steps, then for the first one by halves: a few requests
    however many there are, and none that lists.
    """
    low = 0
    step = 1
    while store.exists(key_of(low + step - 1)):
        low += step
        step *= 2
    high = low + step - 1
    while low < high:
        middle = (low + high) // 2
        if store.exists(key_of(middle)):
            low = middle + 1
        else:
            high = middle
    return low
