"""An opened run: its folder, its plan and its highest commit.

A retry has an address in the run, `RUN/retry-K` for the commit K that announced it. No such folder
exists.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.attempts import Terms
from imagekiln.steps.runs.commits import (
    Head,
    commit_next,
    create_commit,
    plan_of_retry,
    read_head,
    read_present_head,
)
from imagekiln.steps.runs.keys import PLAN_KEY, parse_part_key, planned_part_key
from imagekiln.steps.runs.manifest import find_manifest, read_manifest
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

RETRY_ADDRESS = re.compile(r"retry-([1-9][0-9]{0,8}|0)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Run:
    """A planned run. `retry` is set if the run was opened by the address of a retry."""

    store: Store
    plan: Plan
    head: Head
    retry: int | None = None

    @property
    def is_finished(self) -> bool:
        """True if the run has all that its job requires."""
        return self.head.commit.is_finished

    @property
    def is_complete(self) -> bool:
        """True if no planned image is missing."""
        return self.head.commit.is_complete

    @property
    def terms(self) -> Terms:
        """Prices and budget of the run; by default, the price in the planned job."""
        return self.head.commit.terms or Terms(self.plan.job.price_per_hour)

    @property
    def retry_plans(self) -> tuple[Plan, ...]:
        """Plans of the retries, in order."""
        return tuple(plan_of_retry(self.plan, retry) for retry in self.head.commit.retries)

    @property
    def addressed_plan(self) -> Plan:
        """Return the plan of the run, or of the retry that its address names. Raises BadInput."""
        if self.retry is None:
            return self.plan
        for plan in self.retry_plans:
            if plan.retry == self.retry:
                return plan
        raise BadInput(f"{self.store.uri}: has no retry {self.retry}. Correct the address.")

    def at_head(self) -> "Run":
        """Return the run at its current highest commit. Raises BadInput, TryAgain."""
        return replace(self, head=read_head(self.store))


def read_shard_manifest(run: Run, number: int) -> pa.Table:
    """Read the manifest of a shard. Raises Incomplete if the run was never aggregated, BadInput."""
    return read_shard_columns(run, number, None)


def read_shard_columns(run: Run, number: int, columns: Sequence[str] | None) -> pa.Table:
    """Read these columns of the manifest of a shard, or all. Raises as `read_shard_manifest`."""
    key = find_manifest(run.store, run.head.commit, number)
    images = run.plan.shards[number].images
    return read_manifest(run.store, key, images, columns)


def open_run(uri: str) -> Run:
    """Open the run at `uri`, which may also be the address of one of its retries.

    Raises Missing if there is no plan, BadInput if it cannot be read or the run was removed,
    TryAgain.
    """
    run_uri, retry = split_address(uri)
    store = open_store(run_uri)
    return Run(store, load_plan(store), read_present_head(store), retry)


def split_address(uri: str) -> tuple[str, int | None]:
    """Split an address into the URI of a run, and the retry if it names one."""
    parent, _, name = uri.rstrip("/").rpartition("/")
    match = RETRY_ADDRESS.fullmatch(name)
    if match is None or open_store(uri).exists(PLAN_KEY):  # a run that happens to have such a name
        return uri, None
    return parent or ".", int(match[1])


def address_of(uri: str, plan: Plan) -> str:
    """Return the address of a plan: the run at `uri` itself, or one of its retries."""
    return retry_address(uri, plan.retry) if plan.retry else uri


def retry_address(uri: str, retry: int) -> str:
    """Return the address of a retry of the run at `uri`."""
    return f"{uri.rstrip('/')}/retry-{retry}"


def shards_covering(plan: Plan, number: int) -> list[int]:
    """List the shards of a retry that have images of this shard of the run."""
    return [
        shard for shard, (first, last) in enumerate(plan.source_shards) if first <= number <= last
    ]


def set_terms(store: Store, plan: Plan, terms: Terms) -> Run:
    """Return the run in `store` with these terms, committed if they differ from the plan's.

    Raises BadInput if the run was removed, TryAgain.
    """
    job = plan.job
    planned = Terms(job.price_per_hour, failed_share=job.limits.failed_share)

    def attempt(head: Head) -> Run | None:
        new_head: Head | None = head
        latest = head.commit.terms or planned
        if terms != latest:
            commit = replace(head.commit, kind="terms", terms=terms)
            new_head = create_commit(store, head, commit)
        if new_head is None:
            return None
        return Run(store, plan, new_head)

    return commit_next(store, attempt)


def iter_named_parts(run: Run, keys: Iterable[str]) -> Iterator[Part]:
    """Yield the planned parts with these keys from the manifest, with their rows.

    Raises BadInput if a shard has changed.
    """
    key_of = {planned_part_key(key): key for key in keys}
    plans = {plan.retry: plan for plan in (run.plan, *run.retry_plans)}
    locations = filter(None, map(parse_part_key, key_of))
    for retry, number in sorted(set(locations)):
        if retry not in plans:
            continue
        plan = plans[retry]
        for part in read_shard(run.store, plan, number):
            if part.key not in key_of:
                continue
            key = key_of[part.key]
            yield replace(part, key=key)
