"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from math import ceil

from imagekiln.steps import names, plan, report, runs, stats, tables
from imagekiln.steps.contact import Samples
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.holdings import Holdings
from imagekiln.steps.in_order import in_order
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import Reconciled, reconcile
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import SUMMARY, Summary, Sums

LISTED = 10


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
    runs.enter(store.uri, runs.Entry(frozen.run_id, frozen.job.name))
    store.create(names.SUCCESS, f"{summary.ok} of {summary.images} images\n".encode())
    return summary


def _summed(store: Store, frozen: Plan, failed_share: float) -> Summary:
    """Reconcile every shard; write manifest, index, summary and report."""
    sums, samples = Sums(), Samples(len(frozen.shards))
    with Holdings(store, frozen.counts.images) as held:
        for number, shard in enumerate(in_order(lambda number: _account(store, frozen, number), len(frozen.shards))):
            sums.add(shard)
            samples.add(number, shard)
            held.add(shard.manifest)
        held.write()
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
    bad = summary.images - summary.ok
    if bad > summary.failed_share * summary.images:
        causes = "; ".join(f"{each.images} {each.status} ({each.error})" for each in summary.failures[:LISTED])
        raise Incomplete(
            f"{store.uri}: {bad} of {summary.images} images are not ok: {causes}. "
            f"To accept them: imagekiln aggregate {store.uri} --failed-share {ceil(1000 * bad / summary.images) / 1000}"
        )


def _account(store: Store, frozen: Plan, number: int) -> Reconciled:
    shard = reconcile(store, frozen, number)
    store.replace(names.manifest(number), tables.to_parquet(shard.manifest))
    return shard
