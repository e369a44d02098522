"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from shlex import quote
from typing import TypeVar

from imagekiln.steps import names, plan, report, stats, tables
from imagekiln.steps.contact import Samples
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import Reconciled, reconcile
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import SUMMARY, Summary, Sums

READERS = 8
LISTED = 10
T = TypeVar("T")


def aggregate(uri: str, failed_share: float | None = None) -> Summary:
    """Account for every planned image of the run at `uri`. `failed_share` replaces the job's, which is frozen.

    Raises Incomplete where images are missing or too many are not ok, BadInput on damage, TryAgain where storage
    fails. Whatever is there is in the manifest even then.
    """
    store = open_store(uri)
    frozen = plan.load(store)
    try:
        summary = _summed(store, frozen, frozen.job.limits.failed_share if failed_share is None else failed_share)
        refuse_incomplete(store, summary)
    except (BadInput, Incomplete):
        if store.exists(names.SUCCESS):
            store.remove(names.SUCCESS)  # the run was whole once, and is no longer
        raise
    store.create(names.SUCCESS, f"{summary.ok} of {summary.images} images\n".encode())
    return summary


def _summed(store: Store, frozen: Plan, failed_share: float) -> Summary:
    """Reconcile every shard; write manifest, summary and report."""
    sums, samples = Sums(), Samples()
    for shard in in_order(lambda number: _account(store, frozen, number), len(frozen.shards)):
        sums.add(shard)
        samples.add(shard)
    told = in_order(lambda number: stats.load(store, number), len(frozen.shards))
    summary = sums.summary(frozen, (each for each in told if each is not None), failed_share)
    store.replace(names.SUMMARY, SUMMARY.dump_json(summary, indent=1) + b"\n")
    report.write(store, frozen, summary, samples)
    return summary


def refuse_incomplete(store: Store, summary: Summary) -> None:
    """Raise Incomplete where an image is unaccounted for, or a larger share is not ok than is accepted."""
    if summary.missing:
        listed = ", ".join(summary.missing_parts[:LISTED])
        more = f" and {summary.missing_parts_count - LISTED} more" if summary.missing_parts_count > LISTED else ""
        raise Incomplete(
            f"{store.uri}: {summary.missing} of {summary.images} images are missing: {listed}{more}. "
            "Run their shards again."
        )
    bad = summary.not_ok
    if bad > summary.failed_share * summary.images:
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:LISTED])
        raise Incomplete(
            f"{store.uri}: {bad} of {summary.images} images are not ok: {causes}. "
            f"To accept them: imagekiln aggregate {quote(store.uri)} --failed-share {summary.share_to_accept}"
        )


def in_order(work: Callable[[int], T], count: int) -> Iterator[T]:
    """What `work` gives for each number, in order, some of them at a time and no more in memory than that."""
    with ThreadPoolExecutor(READERS) as pool:
        pending: deque[Future[T]] = deque()
        for number in range(count):
            pending.append(pool.submit(work, number))
            if len(pending) > READERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _account(store: Store, frozen: Plan, number: int) -> Reconciled:
    shard = reconcile(store, frozen, number)
    store.replace(names.manifest(number), tables.to_parquet(shard.manifest))
    return shard
