"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain

import pyarrow as pa

from imagekiln.steps import acceptance, card, formats, gates, names, plan, report, rounds, runs, shard, stats, tables
from imagekiln.steps.acceptance import Accepted
from imagekiln.steps.contact import Samples
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.gate_settings import NEAR_DUPLICATE
from imagekiln.steps.holdings import Holdings
from imagekiln.steps.in_order import in_order
from imagekiln.steps.originals import Originals
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import Reconciled
from imagekiln.steps.rounds import Rounds
from imagekiln.steps.stats import ShardStats
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.summary import SUMMARY, Summary
from imagekiln.steps.sums import Sums


def aggregate(
    uri: str, failed_share: float | None = None, accept: Sequence[str] = (), price: float | None = None
) -> Summary:
    """Account for every planned image of the run at `uri`, which may also name one of its rounds.

    `failed_share` replaces the job's, which is frozen; the share of gates in `accept` does not count; `price` is what a
    device costs an hour. What a finished run was aggregated with stays so. Raises Incomplete where images are missing,
    also of the round that was named, too many are not ok, or a gate found too many, BadInput on damage, TryAgain where
    storage fails. Whatever is there is in the manifest even then.
    """
    run, asked = rounds.home(uri)
    store = open_store(run)
    frozen = plan.load(store)
    gates.check_names(frozen.job.gates, accept)
    again = Rounds(store, frozen)
    try:
        summary = _summed(store, frozen, again, acceptance.accepted(store, frozen, failed_share, accept, price))
        again.mark()
        acceptance.refuse_incomplete(store, frozen.job, summary)
        gates.refuse_exceeded(store, frozen.job, summary)
    except (BadInput, Incomplete):
        if store.exists(names.SUCCESS):
            store.remove(names.SUCCESS)  # the run was whole once, and is no longer
        raise
    runs.enter(store.uri, runs.Entry(frozen.run_id, frozen.job.name))
    store.replace(names.SUCCESS, f"{summary.ok} of {summary.images} images\n".encode())
    again.refuse_unfinished(asked)
    return summary


def _summed(store: Store, frozen: Plan, again: Rounds, accepted: Accepted) -> Summary:
    """Reconcile every shard; write manifest, index, summary, card and report."""
    given = frozen.job.gates
    sums, samples, near = Sums(), Samples(tuple(given.marking)), Originals(given.near_duplicate)
    with Holdings(store, frozen.counts.images) as held:
        for each in in_order(lambda number: _account(store, again, number), len(frozen.shards)):
            sums.add(each)
            samples.add(each)
            near.add(each.manifest)
            held.add(each.manifest)
        held.write()
    for rows in near.mark(store):
        sums.marked(NEAR_DUPLICATE, rows.num_rows)
        samples.mark(NEAR_DUPLICATE, rows)
    _write(store, again.listings())
    summary = sums.summary(frozen, _told(store, frozen, again), accepted, len(again.all))
    store.replace(names.SUMMARY, SUMMARY.dump_json(summary, indent=1) + b"\n")
    card.write(store, frozen, summary)
    report.write(store, frozen, summary, samples)
    return summary


def _told(store: Store, frozen: Plan, again: Rounds) -> Iterator[ShardStats]:
    """What the shards took, and those of the rounds."""
    with closing(in_order(lambda number: stats.load(store, number), len(frozen.shards))) as first:  # type: ignore[type-var]  # a generator
        yield from chain((each for each in first if each is not None), again.stats())


def _account(store: Store, again: Rounds, number: int) -> Reconciled:
    found = again.reconcile(number)
    if found.missing and _adopted(store, again.plan, number):
        found = again.reconcile(number)
    store.replace(names.manifest(number), tables.to_parquet(found.manifest))
    _write(store, formats.listings(again.plan.job, found.manifest))
    return found


def _adopted(store: Store, frozen: Plan, number: int) -> bool:
    """Commit parts that lack no more than that: a retry would make their images a second time."""
    missing = shard.missing(store, shard.read(store, frozen, number))
    return len(formats.unmade(store, formats.chosen(frozen.job), missing)) < len(missing)


def _write(store: Store, listings: Iterable[tuple[str, pa.Table]]) -> None:
    for key, table in listings:
        store.replace(key, tables.to_parquet(table))
