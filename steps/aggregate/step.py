"""The aggregate step: parts are reconciled with the plan, then everything about the run is written.

The order is manifest, image index, summary, card, report, and the success marker last. Of a run
that is finished already, nothing is replaced before all of it is made: see `publishing`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from imagekiln.steps.aggregate.acceptance import check_gate_names, resolve_policy
from imagekiln.steps.aggregate.card import write_card
from imagekiln.steps.aggregate.near_duplicates import NearDuplicateMarker
from imagekiln.steps.aggregate.output_card import update_card_with, update_output_card
from imagekiln.steps.aggregate.publishing import (
    end_suspension,
    publish,
    revoke_success,
    stage_if_finished,
)
from imagekiln.steps.aggregate.reconcile import ReconciledShard, RunReconciler
from imagekiln.steps.aggregate.report.contact_sheet import ContactSheet
from imagekiln.steps.aggregate.report.page import write_report
from imagekiln.steps.aggregate.report.sweep_grid import SweepSheet, swept_settings
from imagekiln.steps.aggregate.summary import (
    AcceptancePolicy,
    Summary,
    SummaryBuilder,
    load_summary,
    write_summary,
)
from imagekiln.steps.aggregate.verdict import judge_run, require_finished
from imagekiln.steps.errors import BadInput, StorageRefused
from imagekiln.steps.job.gates import NEAR_DUPLICATE
from imagekiln.steps.job.prices import PricePerHour
from imagekiln.steps.runs.account import NOTHING, Account, Spent
from imagekiln.steps.runs.formats import format_of, metadata_tables, recover_parts
from imagekiln.steps.runs.image_id_index import RunImageIds, write_image_index
from imagekiln.steps.runs.keys import SUCCESS_KEY, manifest_key
from imagekiln.steps.runs.registry import RunEntry, register_run
from imagekiln.steps.runs.rounds import Run, open_run
from imagekiln.steps.runs.run_rate import read_expectation, write_run_rate
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.runs.terms import replace_prices
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store


def aggregate(
    uri: str,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: PricePerHour | None = None,
) -> Summary:
    """Account for every planned image of the run at `uri`, which may also name one of its rounds.

    `failed_share` replaces the job's, `accept` names gates whose limit does not count, and `price`
    is that of a device for an hour, or a table of them: it is the run's until the job is submitted
    again. What a finished run was accepted with remains accepted.

    Raises Incomplete where images are missing, also those of the round that `uri` names, where too
    many are not ok, or where a gate found too many; BadInput on damage; TryAgain where storage
    fails. The manifest, summary and report are written even when it raises Incomplete. A run that
    was finished remains so where it raises anything else before all that changes is made.
    """
    return aggregate_run(open_run(uri), failed_share, accept, price)


def aggregate_run(
    run: Run,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: PricePerHour | None = None,
) -> Summary:
    """Account for every planned image of an open run: see `aggregate`."""
    job = run.plan.job
    check_gate_names(job, accept)
    if price is not None:
        replace_prices(run.store, price)
    run = replace(run, store=TurnStore(run.store))
    policy = resolve_policy(run, failed_share, accept)
    reconciler = RunReconciler(run.store, run.plan)
    summary = _summarize_safely(run, reconciler, policy)
    verdict = judge_run(summary, job, run.store.uri)
    if verdict.error is not None:
        _unfinish(run)
    reconciler.mark_finished_rounds()
    require_finished(verdict)

    _write_rate(run, summary)
    output = register_run(run.store.uri, RunEntry(run.plan.run_id, job.name))
    run.store.replace(SUCCESS_KEY, f"{summary.ok} of {summary.images} images\n".encode())
    end_suspension(run)
    if output is not None:
        update_output_card(output)
    reconciler.require_round_complete(run.round)
    return summary


def _unfinish(run: Run) -> None:
    """Let a run that is not as its job asks be unfinished, also in the card of its output."""
    was_finished = run.is_finished or run.is_suspended
    revoke_success(run)
    end_suspension(run)
    if was_finished:
        update_card_with(run.store.uri, run.plan)


def finish_run(run: Run) -> Summary:
    """The summary of a run with nothing left to do.

    What was killed when all but the run was finished, or all but its suspension ended, is done now,
    and so is the card of its output.
    """
    if run.is_suspended or not run.is_finished:
        return aggregate_run(run)
    update_card_with(run.store.uri, run.plan)
    return load_summary(run.store)


def _summarize_safely(run: Run, reconciler: RunReconciler, policy: AcceptancePolicy) -> Summary:
    """Summarize the run: a finished one stays finished until all that changes in it is made."""
    with stage_if_finished(run) as staged:
        if staged is None:
            return _summarize_run(run, reconciler, policy)
        summary = _summarize_run(replace(run, store=staged), reconciler, policy)
        publish(run, staged)
        return summary


def _write_rate(run: Run, summary: Summary) -> None:
    """Leave what the run took, for the estimate of the next one."""
    gpu_seconds = summary.spending.gpu_seconds
    write_run_rate(
        run.store,
        run.plan,
        ", ".join(summary.devices),
        summary.work,
        images=summary.images - summary.missing,
        working_seconds=gpu_seconds.drawing + gpu_seconds.idle,
        loading_seconds=gpu_seconds.loading,
    )


def _summarize_run(run: Run, reconciler: RunReconciler, policy: AcceptancePolicy) -> Summary:
    """Reconcile every shard; write manifest, index, summary, card and report."""
    store = run.store
    plan = run.plan
    gates = plan.job.gates
    builder = SummaryBuilder(plan.job.carried_columns, plan.job.scores, plan.pass_sizes)
    sheet = ContactSheet(tuple(plan.job.marking_gates))
    sweep = SweepSheet(swept_settings(plan.job), plan.job.candidates)
    marker = NearDuplicateMarker(gates.near_duplicate)

    with RunImageIds(plan.counts.images) as image_ids:
        for shard in _write_manifests(run, reconciler):
            builder.add(shard)
            sheet.add(shard)
            sweep.add(shard)
            marker.add(shard.manifest)
            image_ids.add(shard.manifest)
        write_image_index(store, image_ids)

    for rows in marker.mark_manifests(store):
        builder.add_marks(NEAR_DUPLICATE, rows.num_rows)
        sheet.add_marked(NEAR_DUPLICATE, rows)
    _write_tables(store, reconciler.round_metadata_tables())

    stats = _iter_shard_stats(run, reconciler)
    spent = _read_account(run)
    summary = builder.build(
        plan, stats, policy, len(reconciler.rounds), spent, read_expectation(store)
    )
    write_summary(store, summary)
    write_card(store, plan, summary)
    write_report(store, plan, summary, sheet, sweep=sweep)
    return summary


def _read_account(run: Run) -> Spent:
    """What the run has spent; nothing where its account is damaged, which costs only figures."""
    try:
        return Account(run.store).read()
    except StorageRefused:
        raise
    except BadInput:
        return NOTHING


def _write_manifests(run: Run, reconciler: RunReconciler) -> Iterator[ReconciledShard]:
    job = run.plan.job
    shard_count = len(run.plan.shards)

    def write_manifest(number: int) -> ReconciledShard:
        shard = reconcile_or_recover(run, reconciler, number)
        manifest = shard.manifest
        run.store.replace(manifest_key(number), to_parquet(manifest))
        _write_tables(run.store, metadata_tables(job, manifest))
        return shard

    return map_ordered(write_manifest, shard_count)


def reconcile_or_recover(run: Run, reconciler: RunReconciler, number: int) -> ReconciledShard:
    """One shard of the run, whose parts that lack only their commit are committed."""
    shard = reconciler.reconcile(number)
    if shard.missing_parts and _recover_parts(run, number):
        return reconciler.reconcile(number)
    return shard


def _recover_parts(run: Run, number: int) -> bool:
    """Commit parts that lack only their commit: `retry` would generate their images again."""
    parts = read_shard(run.store, run.plan, number)
    part_format = format_of(run.plan.job)
    missing = missing_parts(run.store, parts)
    still_missing = recover_parts(run.store, part_format, missing)
    return len(still_missing) < len(missing)


def _write_tables(store: Store, tables: Iterable[tuple[str, pa.Table]]) -> None:
    for key, table in tables:
        store.replace(key, to_parquet(table))


def _iter_shard_stats(run: Run, reconciler: RunReconciler) -> Iterator[ShardStats]:
    """The statistics of the run's shards and of those of its rounds, where they left any."""
    loaded = map_ordered(lambda number: load_stats(run.store, number), len(run.plan.shards))
    with closing(loaded) as all_stats:
        for stats in all_stats:
            if stats is not None:
                yield stats
    yield from reconciler.round_stats()
