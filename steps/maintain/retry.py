"""Generates again what is failed, blank or missing: a round of the run, in a folder within it."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import permanent_mask
from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.step import aggregate, finish_run, reconcile_or_recover
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.errors import BadInput, Incomplete, Missing
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.job.execution import MAX_SHARD_IMAGES
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import require_entries
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.forgotten import NO_IDS, add_forgotten, read_forgotten_ids
from imagekiln.steps.runs.image import MISSING_STATUS
from imagekiln.steps.runs.keys import PLAN_KEY, manifest_key, round_folder, shard_key
from imagekiln.steps.runs.manifest import read_manifest_columns
from imagekiln.steps.runs.parts_to_make import parts_to_make
from imagekiln.steps.runs.plan import (
    Plan,
    PlanCounts,
    Shard,
    creation_time,
    load_plan,
    plan_to_json,
)
from imagekiln.steps.runs.rounds import Round, Run, open_run
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_folder, open_store
from imagekiln.steps.storage.store import Store

OUTCOME_COLUMNS = ["status", "error"]
RETRIED_STATUSES = ("blank", "failed", MISSING_STATUS)  # not `filtered`, which is no fault
WORK_TOLERANCE = 1e-9
ReadOutcomes = Callable[[int], pa.Table]  # of a shard of the run, by its number


@dataclass(frozen=True, slots=True)
class RetryResult:
    """A run after a round: the round's number and its images, both 0 where nothing was left."""

    uri: str
    round: int
    images: int
    summary: Summary


@dataclass(frozen=True, slots=True)
class _RetryRows:
    """Image rows from the shards `first` to `last` of the run.

    `work` is measured in shards: that of a whole shard is 1.
    """

    tables: tuple[pa.Table, ...] = ()
    images: int = 0
    work: float = 0.0
    first: int = 0
    last: int = 0

    def __add__(self, other: "_RetryRows") -> "_RetryRows":
        return _RetryRows(
            tables=self.tables + other.tables,
            images=self.images + other.images,
            work=self.work + other.work,
            first=self.first if self.images else other.first,
            last=other.last,
        )

    def split(self, first_size: int, size: int) -> Iterator["_RetryRows"]:
        """The rows of a single table in pieces: one of `first_size` rows, the others of `size`."""
        (table,) = self.tables
        start = 0
        while start < self.images:
            piece = table.slice(start, size if start else first_size)
            work = self.work * piece.num_rows / self.images
            yield replace(self, tables=(piece,), images=piece.num_rows, work=work)
            start += piece.num_rows

    def to_table(self) -> pa.Table:
        """All rows in one table."""
        return pa.concat_tables(self.tables).combine_chunks()


@dataclass(frozen=True, slots=True)
class _PlannedShard:
    shard: Shard
    source_shards: tuple[int, int]
    truncated_prompts: int


def retry(
    uri: str,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult], None] = lambda _: None,
    *,
    include_permanent: bool = False,
) -> RetryResult:
    """Generate again what is not ok in the run at `uri`, except what the safety checker filtered.

    Failures that another try cannot mend are left, unless `include_permanent`. Where it was
    stopped, it resumes the same round. Raises what the steps raise: Incomplete where
    the run was never aggregated, or where too many images are not ok after the round.
    """
    run = open_run(uri)
    require_libraries()
    require_entries(run.plan.job)
    retry_round = plan_next_round(run.store, run.plan, include_permanent=include_permanent)
    if retry_round is None:
        return RetryResult(run.store.uri, 0, 0, finish_run(run))

    planned(PlanResult(retry_round.plan, retry_round.store.uri, adopted=False))
    _generate_round(retry_round, progress or NoProgress(), stop or Stop())
    summary = aggregate(retry_round.store.uri)
    return RetryResult(
        run.store.uri, retry_round.plan.round, retry_round.plan.counts.images, summary
    )


def plan_retry(job: Job) -> PlanResult:
    """The next round of the job's run; where nothing is left, the run as a plan without shards.

    Raises Missing where there is no such run, and what `plan_next_round` raises.
    """
    run = make_plan(job, must_exist=True)
    store = open_store(run.uri)
    retry_round = plan_next_round(store, run.plan)
    if retry_round is None:
        empty = replace(run.plan, counts=replace(run.plan.counts, images=0), shards=())
        return PlanResult(empty, run.uri, adopted=True)
    return PlanResult(retry_round.plan, retry_round.store.uri, adopted=False)


def plan_next_round(store: Store, plan: Plan, *, include_permanent: bool = False) -> Round | None:
    """The last round where it is unfinished, or else a new one; None where nothing is left to do.

    What is left is what the manifest says, or the parts where it may be out of date, without the
    failures that another try cannot mend unless `include_permanent`. An unfinished round is
    superseded where some of what it lacks has been made since, such as by running the job again.
    Raises Incomplete where the run was never aggregated, BadInput, TryAgain.
    """
    reconciler = RunReconciler(store, plan)
    read_outcomes = partial(_read_outcomes, store, plan, reconciler)
    next_round: Round | None = None
    overtaken: list[Round] = []
    for retry_round in reconciler.rounds:
        if retry_round.is_finished:
            continue
        is_superseded = retry_round.is_superseded
        if not (is_superseded or _is_overtaken(store, plan, retry_round, read_outcomes)):
            next_round = retry_round
            break
        overtaken.append(retry_round)
        # Its parts may be in no manifest, also where who superseded it was killed.
        read_outcomes = partial(_reconcile_outcomes, store, plan, reconciler)
    else:
        number = len(reconciler.rounds) + 1
        next_round = _plan_further_round(store, plan, number, read_outcomes, include_permanent)
    for retry_round in overtaken:
        retry_round.supersede()  # once the remainder is planned: the job would make some of it
    return next_round


def _plan_further_round(
    store: Store, plan: Plan, number: int, read_outcomes: ReadOutcomes, include_permanent: bool
) -> Round | None:
    """A new round of what is left, or None."""
    rows_to_retry = _rows_to_retry(store, plan, read_outcomes, include_permanent)
    groups = _group_into_shards(rows_to_retry, plan)
    first = next(groups, None)
    if first is None:
        return None
    round_store = open_folder(store, round_folder(number))
    left_out = NO_IDS if plan.job.keep is None else read_forgotten_ids(store)
    all_groups = chain([first], groups)
    return Round(round_store, _plan_round(round_store, plan, number, all_groups, left_out))


def _plan_round(
    store: Store, plan: Plan, number: int, groups: Iterator[_RetryRows], left_out: pa.Array
) -> Plan:
    """Write the shards of a round and its plan; where another process has done so, read that.

    Those of `left_out` do not compete with other candidates in it.
    """
    own_store = TurnStore(store)  # whoever began to plan this round before writes no more of it
    if store.exists(PLAN_KEY):
        return load_plan(store)
    if len(left_out):
        add_forgotten(own_store, left_out)
    shards = [_write_shard(own_store, place, rows) for place, rows in enumerate(groups)]
    round_plan = replace(
        plan,
        created_at=creation_time(),
        counts=PlanCounts(
            rejected_rows=0,
            images=sum(planned.shard.images for planned in shards),
            duplicate_images=0,
            truncated_prompts=sum(planned.truncated_prompts for planned in shards),
        ),
        shards=tuple(planned.shard for planned in shards),
        round=number,
        source_shards=tuple(planned.source_shards for planned in shards),
        sample_images=0,
    )
    is_first = own_store.create(PLAN_KEY, plan_to_json(round_plan))
    return round_plan if is_first else load_plan(store)


def _generate_round(retry_round: Round, progress: Progress, stop: Stop) -> None:
    # Only where pixels are made: torch takes seconds to import, and planning needs none of it.
    from imagekiln.steps.generate.step import generate_shards

    store = retry_round.store
    plan = retry_round.plan
    progress.start(plan.counts.images)
    with meter_attempt(store, plan, progress, stop) as meter:
        generate_shards(store, plan, range(len(plan.shards)), meter, stop)
    progress.close()


def _is_overtaken(
    store: Store, plan: Plan, retry_round: Round, read_outcomes: ReadOutcomes
) -> bool:
    """Whether an image that the round lacks is none of those to generate again any more."""

    def is_shard_overtaken(number: int) -> bool:
        lacking = _lacking_ids(retry_round, number)
        if not len(lacking):
            return False
        first, last = retry_round.plan.source_shards[number]
        sources = range(first, last + 1)
        to_retry = _ids_to_retry(store, plan, sources, read_outcomes)
        is_to_retry = pc.is_in(lacking, to_retry)
        return not pc.all(is_to_retry).as_py()

    shard_count = len(retry_round.plan.shards)
    with closing(map_ordered(is_shard_overtaken, shard_count)) as results:
        return any(results)


def _lacking_ids(retry_round: Round, number: int) -> pa.Array:
    """The ids of the images that are to be made in one shard of the round."""
    store = retry_round.store
    plan = retry_round.plan
    parts = read_shard(store, plan, number)
    image_ids = [NO_IDS]
    for part in parts_to_make(store, plan, number, parts):
        image_ids += part.rows["image_id"].chunks
    return pa.concat_arrays(image_ids)


def _ids_to_retry(
    store: Store, plan: Plan, numbers: range, read_outcomes: ReadOutcomes
) -> pa.Array:
    """The ids of all images of these shards of the run that a round may hold."""
    image_ids = [NO_IDS]
    for number in numbers:
        rows = _shard_rows_to_retry(store, plan, number, read_outcomes, include_permanent=True)
        if rows is not None:
            image_ids += rows["image_id"].chunks
    return pa.concat_arrays(image_ids)


def _rows_to_retry(
    store: Store, plan: Plan, read_outcomes: ReadOutcomes, include_permanent: bool
) -> Iterator[_RetryRows]:
    """The rows to generate again, shard by shard of the run."""
    sizes = [shard.images for shard in plan.shards]
    last = len(sizes) - 1

    def read(number: int) -> pa.Table | None:
        return _shard_rows_to_retry(store, plan, number, read_outcomes, include_permanent)

    schema: pa.Schema | None = None
    tables = map_ordered(read, len(sizes))
    for number, table in enumerate(tables):
        if table is None:
            continue
        schema = schema or table.schema
        if table.schema != schema:
            where = store.uri_of(shard_key(number))
            raise BadInput(f"{where}: has other columns than shards before it. Restore it.")
        # The last shard may be short: an image of it is no more work for that.
        full_size = max(sizes[-2:]) if number == last else sizes[number]
        yield _RetryRows((table,), table.num_rows, table.num_rows / full_size, number, number)


def _read_outcomes(store: Store, plan: Plan, reconciler: RunReconciler, number: int) -> pa.Table:
    """What became of a shard's images by the manifest, or, where it lacks some, by the parts."""
    key = manifest_key(number)
    try:
        images = plan.shards[number].images
        manifest = read_manifest_columns(store, number, images, OUTCOME_COLUMNS)
    except Missing as error:
        raise Incomplete(
            f"{store.uri_of(key)}: is missing, so it is unknown what is left. Run the job, or "
            f"`{format_command('aggregate', store.uri)}`, first."
        ) from error
    is_missing = pc.equal(manifest["status"], MISSING_STATUS)
    if pc.any(is_missing).as_py():
        return _reconcile_outcomes(store, plan, reconciler, number)  # they may be made since
    return manifest.combine_chunks()


def _reconcile_outcomes(
    store: Store, plan: Plan, reconciler: RunReconciler, number: int
) -> pa.Table:
    run = Run(store, plan)
    shard = reconcile_or_recover(run, reconciler, number)
    outcomes = shard.manifest.select(OUTCOME_COLUMNS)
    return outcomes.combine_chunks()


def _shard_rows_to_retry(
    store: Store, plan: Plan, number: int, read_outcomes: ReadOutcomes, include_permanent: bool
) -> pa.Table | None:
    manifest = read_outcomes(number)
    is_retried = pc.is_in(manifest["status"], pa.array(RETRIED_STATUSES))
    if not include_permanent:
        is_permanent = permanent_mask(manifest["status"], manifest["error"])
        is_retried = pc.and_not(is_retried, is_permanent)
    if not pc.any(is_retried).as_py():
        return None
    if plan.job.keep is not None:
        is_retried = _with_candidates(is_retried, plan.job.candidates)
    return read_shard_rows(store, plan, number).filter(is_retried)


def _with_candidates(is_retried: pa.ChunkedArray, candidates: int) -> pa.Array:
    """All candidates of places without a winner: of one that has it, none is to be retried."""
    groups = is_retried.to_numpy().reshape(-1, candidates)
    return pa.array(groups.any(axis=1).repeat(candidates))


def _group_into_shards(rows: Iterator[_RetryRows], plan: Plan) -> Iterator[_RetryRows]:
    """The rows in shards of whole parts, none of them more work than a shard of the run."""
    shard = _RetryRows()
    for part in _group_into_parts(rows, plan.part_images):
        extended = shard + part
        too_large = extended.work > 1 + WORK_TOLERANCE or extended.images > MAX_SHARD_IMAGES
        if shard.images and too_large:
            yield shard
            shard = part
        else:
            shard = extended
    if shard.images:
        yield shard


def _group_into_parts(rows: Iterator[_RetryRows], size: int) -> Iterator[_RetryRows]:
    """The rows in parts of `size` images; the last one may be shorter."""
    part = _RetryRows()
    for shard_rows in rows:
        for piece in shard_rows.split(size - part.images, size):
            part += piece
            if part.images == size:
                yield replace(part, tables=(part.to_table(),))
                part = _RetryRows()
    if part.images:
        yield part


def _write_shard(store: Store, number: int, rows: _RetryRows) -> _PlannedShard:
    table = rows.to_table()
    content = to_parquet(table)
    key = shard_key(number)
    # Without a plan, an existing object is left over from an attempt at planning that was killed,
    # and the manifest may have changed since.
    if not store.create(key, content) and store.read(key) != content:
        store.replace(key, content)
    return _PlannedShard(
        shard=Shard(table.num_rows, hashlib.sha256(content).hexdigest()),
        source_shards=(rows.first, rows.last),
        truncated_prompts=len(table.filter(table["truncated"])["input_row"].unique()),
    )
