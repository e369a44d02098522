"""The aggregate step: parts are reconciled against the plan; manifest, summary, report, and `_SUCCESS` last."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain

import pyarrow as pa

from imagekiln.steps.aggregate.acceptance import (
    check_gate_names,
    require_complete,
    require_gates_passed,
    resolve_policy,
)
from imagekiln.steps.aggregate.card import write_card
from imagekiln.steps.aggregate.near_duplicates import NearDuplicateMarker
from imagekiln.steps.aggregate.reconcile import ReconciledShard, RunReconciler
from imagekiln.steps.aggregate.report.contact_sheet import ContactSheet
from imagekiln.steps.aggregate.report.page import write_report
from imagekiln.steps.aggregate.summary import (
    SUMMARY_ADAPTER,
    AcceptancePolicy,
    Summary,
    SummaryBuilder,
)
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.job.gates import NEAR_DUPLICATE
from imagekiln.steps.runs.formats import format_of, metadata_tables, recover_parts
from imagekiln.steps.runs.image_index import ImageIndexWriter
from imagekiln.steps.runs.keys import SUCCESS_KEY, SUMMARY_KEY, manifest_key
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.registry import RunEntry, register_run
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store


def aggregate(
    uri: str,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: float | None = None,
) -> Summary:
    """Account for every planned image of the run at `uri`, which may also name one of its rounds.

    `failed_share` replaces the job's, which is frozen; the share of gates in `accept` does not count; `price` is what a
    device costs an hour. What a finished run was aggregated with stays so. Raises Incomplete where images are missing,
    also of the round that was named, too many are not ok, or a gate found too many, BadInput on damage, TryAgain where
    storage fails. Whatever is there is in the manifest even then.
    """
    run, asked = resolve_run(uri)
    store = open_store(run)
    frozen = load_plan(store)
    check_gate_names(frozen.job.gates, accept)
    again = RunReconciler(store, frozen)
    try:
        summary = _summarize_run(
            store, frozen, again, resolve_policy(store, frozen, failed_share, accept, price)
        )
        again.mark_finished_rounds()
        require_complete(store, frozen.job, summary)
        require_gates_passed(store, frozen.job, summary)
    except (BadInput, Incomplete):
        if store.exists(SUCCESS_KEY):
            store.remove(SUCCESS_KEY)  # the run was whole once, and is no longer
        raise
    register_run(store.uri, RunEntry(frozen.run_id, frozen.job.name))
    store.replace(SUCCESS_KEY, f"{summary.ok} of {summary.images} images\n".encode())
    again.require_finished(asked)
    return summary


def _summarize_run(
    store: Store, frozen: Plan, again: RunReconciler, accepted: AcceptancePolicy
) -> Summary:
    """Reconcile every shard; write manifest, index, summary, card and report."""
    given = frozen.job.gates
    sums, samples, near = (
        SummaryBuilder(),
        ContactSheet(tuple(given.marking_gates)),
        NearDuplicateMarker(given.near_duplicate),
    )
    with ImageIndexWriter(store, frozen.counts.images) as held:
        for each in map_ordered(
            lambda number: _write_manifest(store, again, number), len(frozen.shards)
        ):
            sums.add(each)
            samples.add(each)
            near.add(each.manifest)
            held.add(each.manifest)
        held.write()
    for rows in near.mark_manifests(store):
        sums.add_marks(NEAR_DUPLICATE, rows.num_rows)
        samples.add_marked(NEAR_DUPLICATE, rows)
    _write_listings(store, again.round_metadata_tables())
    summary = sums.build(
        frozen, _iter_shard_stats(store, frozen, again), accepted, len(again.rounds)
    )
    store.replace(SUMMARY_KEY, SUMMARY_ADAPTER.dump_json(summary, indent=1) + b"\n")
    write_card(store, frozen, summary)
    write_report(store, frozen, summary, samples)
    return summary


def _iter_shard_stats(store: Store, frozen: Plan, again: RunReconciler) -> Iterator[ShardStats]:
    """What the shards took, and those of the rounds."""
    with closing(
        map_ordered(lambda number: load_stats(store, number), len(frozen.shards))
    ) as first:  # type: ignore[type-var]  # a generator
        yield from chain((each for each in first if each is not None), again.round_stats())


def _write_manifest(store: Store, again: RunReconciler, number: int) -> ReconciledShard:
    found = again.reconcile(number)
    if found.missing_parts and _recover_parts(store, again.plan, number):
        found = again.reconcile(number)
    store.replace(manifest_key(number), to_parquet(found.manifest))
    _write_listings(store, metadata_tables(again.plan.job, found.manifest))
    return found


def _recover_parts(store: Store, frozen: Plan, number: int) -> bool:
    """Commit parts that lack no more than that: a retry would make their images a second time."""
    missing = missing_parts(store, read_shard(store, frozen, number))
    return len(recover_parts(store, format_of(frozen.job), missing)) < len(missing)


def _write_listings(store: Store, listings: Iterable[tuple[str, pa.Table]]) -> None:
    for key, table in listings:
        store.replace(key, to_parquet(table))
