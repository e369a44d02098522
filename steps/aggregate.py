"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import ceil
from typing import TypeVar

from imagekiln.steps import card, formats, gates, names, plan, report, stats, tables
from imagekiln.steps.contact import Samples
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.gate_settings import NEAR_DUPLICATE
from imagekiln.steps.originals import Originals
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import Reconciled, reconcile
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import SUMMARY, Summary, Sums

READERS = 8
LISTED = 10
T = TypeVar("T")


def aggregate(uri: str, failed_share: float | None = None, accept: Sequence[str] = ()) -> Summary:
    """Account for every planned image of the run at `uri`.

    `failed_share` replaces the job's, which is frozen; the share of gates in `accept` does not count.

    Raises Incomplete where images are missing or too many are not ok, BadInput on damage, TryAgain where storage
    fails. Whatever is there is in the manifest even then.
    """
    store = open_store(uri)
    frozen = plan.load(store)
    gates.check_names(frozen.job.gates, accept)
    share = frozen.job.limits.failed_share if failed_share is None else failed_share
    try:
        summary = _summed(store, frozen, share, accept)
        refuse_incomplete(store, summary)
        gates.refuse_exceeded(store, frozen.job.gates, summary)
    except (BadInput, Incomplete):
        if store.exists(names.SUCCESS):
            store.remove(names.SUCCESS)  # the run was whole once, and is no longer
        raise
    store.create(names.SUCCESS, f"{summary.ok} of {summary.images} images\n".encode())
    return summary


def _summed(store: Store, frozen: Plan, failed_share: float, accept: Sequence[str]) -> Summary:
    """Reconcile every shard; write manifest, summary, card and report."""
    sums, samples, near = Sums(), Samples(len(frozen.shards)), Originals(frozen.job.gates.near_duplicate)
    for number, shard in enumerate(in_order(lambda number: _account(store, frozen, number), len(frozen.shards))):
        sums.add(shard)
        samples.add(number, shard)
        near.add(shard.manifest)
    sums.marked(NEAR_DUPLICATE, near.mark(store))
    told = in_order(lambda number: stats.load(store, number), len(frozen.shards))
    summary = sums.summary(frozen, (each for each in told if each is not None), failed_share, accept)
    store.replace(names.SUMMARY, SUMMARY.dump_json(summary, indent=1) + b"\n")
    card.write(store, frozen, summary)
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
    bad = summary.images - summary.ok
    if bad > summary.failed_share * summary.images:
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:LISTED])
        raise Incomplete(
            f"{store.uri}: {bad} of {summary.images} images are not ok: {causes}. "
            f"To accept them: imagekiln aggregate {store.uri} --failed-share {ceil(1000 * bad / summary.images) / 1000}"
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
    for key, table in formats.listings(frozen.job, shard.manifest):
        store.replace(key, tables.to_parquet(table))
    return shard
