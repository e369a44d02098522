"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from imagekiln.steps import names, plan, report, stats, tables
from imagekiln.steps.contact import Samples
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import Reconciled, reconcile
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import SUMMARY, Summary, Sums

READERS = 8
LISTED = 10
T = TypeVar("T")


def aggregate(uri: str) -> Summary:
    """Account for every planned image of the run at `uri`.

    Raises Incomplete where images are missing or too many are not ok, BadInput on damage, TryAgain where storage
    fails. Whatever is there is in the manifest even then.
    """
    store = open_store(uri)
    frozen = plan.load(store)
    sums, samples = Sums(), Samples(len(frozen.shards))
    for number, shard in enumerate(in_order(lambda number: _account(store, frozen, number), len(frozen.shards))):
        sums.add(shard)
        samples.add(number, shard)
    told = in_order(lambda number: stats.load(store, number), len(frozen.shards))
    summary = sums.summary(frozen, (each for each in told if each is not None))
    store.replace(names.SUMMARY, SUMMARY.dump_json(summary, indent=1) + b"\n")
    report.write(store, frozen, summary, samples)
    refuse_incomplete(store, frozen, summary)
    store.create(names.SUCCESS, f"{summary.ok} of {summary.images} images\n".encode())
    return summary


def refuse_incomplete(store: Store, frozen: Plan, summary: Summary) -> None:
    """Raise Incomplete where an image is unaccounted for, or more are not ok than the job allows."""
    if summary.missing:
        listed = ", ".join(summary.missing_parts[:LISTED])
        more = f" and {summary.missing_parts_count - LISTED} more" if summary.missing_parts_count > LISTED else ""
        raise Incomplete(
            f"{store.uri}: {summary.missing} of {summary.images} images are missing: {listed}{more}. "
            "Run their shards again."
        )
    bad = summary.images - summary.ok
    if bad > frozen.job.limits.failed_share * summary.images:
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:LISTED])
        raise Incomplete(
            f"{store.uri}: {bad} of {summary.images} images are not ok: {causes}. "
            "See the manifest, or raise limits.failed_share."
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
