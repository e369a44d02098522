"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import ceil

from imagekiln.steps import names, plan, report, rounds, runs, stats, tables
from imagekiln.steps import summary as summaries
from imagekiln.steps.contact import Samples
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.holdings import Holdings
from imagekiln.steps.in_order import in_order
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import Reconciled
from imagekiln.steps.rounds import Rounds
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import SUMMARY, Summary, Sums

LISTED = 10


def aggregate(uri: str, failed_share: float | None = None) -> Summary:
    """Account for every planned image of the run at `uri`, which may also name one of its rounds.

    `failed_share` replaces the job's, which is frozen; a run that was accepted with a larger one stays so. Raises
    Incomplete where images are missing, also of the round that was named, or too many are not ok, BadInput on damage,
    TryAgain where storage fails. Whatever is there is in the manifest even then.
    """
    run, asked = rounds.home(uri)
    store = open_store(run)
    frozen = plan.load(store)
    again = Rounds(store, frozen)
    try:
        summary = _summed(store, frozen, again, _accepted(store, frozen) if failed_share is None else failed_share)
        again.mark()
        refuse_incomplete(store, summary)
    except (BadInput, Incomplete):
        if store.exists(names.SUCCESS):
            store.remove(names.SUCCESS)  # the run was whole once, and is no longer
        raise
    runs.enter(store.uri, runs.Entry(frozen.run_id, frozen.job.name))
    store.replace(names.SUCCESS, f"{summary.ok} of {summary.images} images\n".encode())
    again.refuse_unfinished(asked)
    return summary


def _accepted(store: Store, frozen: Plan) -> float:
    """The share of images that need not be ok: the job's, or what the run was accepted with."""
    share = frozen.job.limits.failed_share
    if store.exists(names.SUCCESS):
        with suppress(BadInput):  # the summary is about to be written anew
            return max(share, summaries.load(store).failed_share)
    return share


def _summed(store: Store, frozen: Plan, again: Rounds, failed_share: float) -> Summary:
    """Reconcile every shard; write manifest, index, summary and report."""
    sums, samples = Sums(), Samples(len(frozen.shards))
    with Holdings(store, frozen.counts.images) as held:
        for number, shard in enumerate(in_order(lambda number: _account(store, again, number), len(frozen.shards))):
            sums.add(shard)
            samples.add(number, shard)
            held.add(shard.manifest)
        held.write()
    first = in_order(lambda number: stats.load(store, number), len(frozen.shards))
    told = chain((each for each in first if each is not None), again.stats())
    summary = replace(sums.summary(frozen, told, failed_share), rounds=len(again.all))
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
        share = ceil(1000 * bad / summary.images) / 1000
        raise Incomplete(
            f"{store.uri}: {bad} of {summary.images} images are not ok: {causes}. To make them again: "
            f"imagekiln retry {store.uri}. To accept them: imagekiln aggregate {store.uri} --failed-share {share}"
        )


def _account(store: Store, again: Rounds, number: int) -> Reconciled:
    shard = again.reconcile(number)
    store.replace(names.manifest(number), tables.to_parquet(shard.manifest))
    return shard
