"""Commits of a run: objects that are created once, under consecutive numbers.

The highest commit is the state of the run. Readers take it and the immutable metadata that it
names. A writer first writes objects under new names, and then creates the next commit. If another
writer takes that number, it starts over from the new commit.

The name of a metadata object contains its digest, so two writers share an object only if the bytes
are equal. Images are written only under names that the plan or a commit has announced.
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
    """A retry, identified by the number of the commit that announced it.

    `source_shards` holds, for each of its shards, the first and the last shard of the run whose
    images it retries. `is_counted` is true if all of its parts are in the manifest.
    """

    number: Count
    created_at: AwareDatetime
    shards: Annotated[tuple[Shard, ...], FailFast()]
    source_shards: Annotated[tuple[tuple[Count, Count], ...], FailFast()]
    truncated_prompts: Count
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Takedown:
    """Images about to be forgotten, identified by the number of the commit that announced it.

    `ids` names a table of all ids forgotten from then on. `parts` are the parts that contain such
    images.
    """

    number: Count
    ids: MetadataKey
    parts: PartKeys


@dataclass(frozen=True, slots=True)
class Commit:
    """State of a run.

    `manifests` lists the manifest keys in shard order. It is empty before the first aggregation.
    `forgotten` names a table of the ids that were taken down. `buried` lists names that hold no
    images and are never written again. `is_complete` is true if the job and its retries have no
    missing part, `is_finished` if the run has all that its job requires. `summary` has the counts
    and times, `rate` the speed for estimates of later runs.
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
    """The highest commit of a run and its number, -1 if there is no commit."""

    number: int = -1
    commit: Commit = NO_COMMIT

    @property
    def is_removed(self) -> bool:
        """True if the run was removed."""
        return self.commit.kind == "removed"

    @property
    def uncounted_retry(self) -> Retry | None:
        """The retry whose parts are not made or counted yet; None if there is none."""
        return next((retry for retry in self.commit.retries if not retry.is_counted), None)


COMMIT_TYPE_ADAPTER: TypeAdapter[Commit] = TypeAdapter(Commit)


def read_head(store: Store) -> Head:
    """Read the highest commit of the run in `store`. Raises BadInput on damage, TryAgain."""
    number = count_entries(store, commit_key) - 1
    if number < 0:
        return Head()
    return Head(number, read_commit(store, number))


def read_present_head(store: Store) -> Head:
    """Read the highest commit of a run that was not removed. Raises BadInput, TryAgain."""
    head = read_head(store)
    if head.is_removed:
        raise BadInput(
            f"{store.uri}: was removed by `imagekiln gc`. Choose another run_id or --date."
        )
    return head


def read_commit(store: Store, number: int) -> Commit:
    """Read the commit of this number. Raises Missing, or BadInput if it is damaged."""
    key = commit_key(number)
    where = store.uri_of(key)
    commit = parse_json(COMMIT_TYPE_ADAPTER, store.read(key), where, "commit")
    if commit.schema_version != PLAN_SCHEMA_VERSION:
        raise version_error(where, commit.schema_version, PLAN_SCHEMA_VERSION)
    return commit


def is_highest(store: Store, head: Head) -> bool:
    """Return whether there is no higher commit."""
    return not store.exists(commit_key(head.number + 1))


def create_commit(store: Store, head: Head, commit: Commit) -> Head | None:
    """Create the commit after `head`. Return None if another process has the number.

    Raises TryAgain.
    """
    commit = replace(commit, at=time.time())
    number = head.number + 1
    content = COMMIT_TYPE_ADAPTER.dump_json(commit) + b"\n"
    key = commit_key(number)
    if store.create(key, content):
        return Head(number, commit)
    return None


def commit_next(store: Store, attempt: Callable[[Head], T | None]) -> T:
    """Call `attempt` with the highest commit until it returns a value.

    `attempt` returns None if the commit passed to it is no longer the highest. Raises TryAgain
    after too many attempts, BadInput if the run was removed.
    """
    for _ in range(MAX_TRIES):
        head = read_present_head(store)
        try:
            result = attempt(head)
        except BadInput:
            if is_highest(store, head):
                raise
            continue  # not damage: the objects of this commit were buried or removed meanwhile
        if result is not None:
            return result
    raise TryAgain(f"{store.uri}: other processes keep changing this run. Run the command again.")


def digest_of(content: bytes) -> str:
    """Return the digest of an object, which is part of its name."""
    return hashlib.sha256(content).hexdigest()


def plan_of_retry(plan: Plan, retry: Retry) -> Plan:
    """Return the plan of one of the run's retries."""
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

    Finds a free number in growing steps, then the first free one by bisection. This takes a few
    requests for any number of objects, and no listing.
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
