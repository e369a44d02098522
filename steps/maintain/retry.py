"""Planning a round: the images that ended failed, blank or missing, cut as the run was, in a folder within it."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import Incomplete, Missing
from imagekiln.steps.job.job import MAX_SHARD_IMAGES, Job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.image import MISSING_STATUS
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, manifest_key, round_folder, shard_key
from imagekiln.steps.runs.plan import Plan, PlanCounts, Shard, load_plan, plan_to_json
from imagekiln.steps.runs.rounds import Round, iter_rounds, resolve_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.tables import read_column, to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, create_once

RETRIED_STATUSES = ("blank", "failed", MISSING_STATUS)  # `filtered` is a verdict, not a fault
WORK_TOLERANCE = 1e-9


def plan_next_round(store: Store, frozen: Plan) -> Round | None:
    """The round to make now: the last one where it is unfinished, else a new one; None where nothing is left to make.

    What is left is what the manifest says. Raises Incomplete where the run was never aggregated, BadInput, TryAgain.
    """
    number = 1
    for each in iter_rounds(store, frozen):
        if not each.is_finished:
            return each
        number = each.plan.round + 1
    inside = open_store(f"{store.uri}/{round_folder(number)}")
    shards = [
        _write_shard(inside, place, each)
        for place, each in enumerate(_group_into_shards(_rows_to_retry(store, frozen), frozen))
    ]
    if not shards:
        return None
    made = replace(
        frozen,
        counts=PlanCounts(
            0, sum(each.shard.images for each in shards), 0, sum(each.truncated for each in shards)
        ),
        shards=tuple(each.shard for each in shards),
        round=number,
        source_shards=tuple(each.covers for each in shards),
    )
    create_once(inside, PLAN_KEY, plan_to_json(made))
    return Round(inside, made)


def plan_retry(job: Job) -> PlanResult:
    """The round to make now of the job's run; where nothing is left, the run itself as a plan without shards.

    Raises Missing where there is no such run, and what `next_round` raises.
    """
    there = make_plan(job, must_exist=True)
    found = plan_next_round(open_store(there.uri), there.plan)
    if found is None:
        nothing = replace(there.plan, counts=replace(there.plan.counts, images=0), shards=())
        return PlanResult(nothing, there.uri, adopted=True)
    return PlanResult(found.plan, found.store.uri, adopted=False)


@dataclass(frozen=True, slots=True)
class _RetryRows:
    """Image rows from the shards `first` to `last` of the run, and their work: that of a whole shard of it is 1."""

    tables: tuple[pa.Table, ...] = ()
    images: int = 0
    work: float = 0.0
    first: int = 0
    last: int = 0

    def __add__(self, other: "_RetryRows") -> "_RetryRows":
        first = self.first if self.images else other.first
        images, work = self.images + other.images, self.work + other.work
        return _RetryRows(self.tables + other.tables, images, work, first, other.last)

    def split(self, first: int, size: int) -> Iterator["_RetryRows"]:
        """The rows of one table in pieces: the first of at most `first` rows, the others of `size`."""
        (table,), start = self.tables, 0
        while start < self.images:
            piece = table.slice(start, size if start else first)
            yield _RetryRows(
                (piece,),
                piece.num_rows,
                self.work * piece.num_rows / self.images,
                self.first,
                self.last,
            )
            start += piece.num_rows


@dataclass(frozen=True, slots=True)
class _PlannedShard:
    shard: Shard
    covers: tuple[int, int]
    truncated: int


def _rows_to_retry(store: Store, frozen: Plan) -> Iterator[_RetryRows]:
    """The rows to make again, shard by shard of the run."""
    sizes = [each.images for each in frozen.shards]
    for number, rows in enumerate(
        map_ordered(lambda number: _shard_rows_to_retry(store, frozen, number), len(sizes))
    ):
        if rows is not None:
            # The last shard may be short: an image of it is no more work for that.
            full = max(sizes[-2:]) if number == len(sizes) - 1 else sizes[number]
            yield _RetryRows((rows,), rows.num_rows, rows.num_rows / full, number, number)


def _shard_rows_to_retry(store: Store, frozen: Plan, number: int) -> pa.Table | None:
    try:
        status = read_column(store, manifest_key(number), "status")
    except Missing as error:
        raise Incomplete(
            f"{store.uri_of(manifest_key(number))}: is not there, so nobody knows what is left. Run the job, or "
            f"`{format_command('aggregate', store.uri)}`, first."
        ) from error
    again = pc.is_in(status, pa.array(RETRIED_STATUSES))
    if not pc.any(again).as_py():
        return None
    return pa.concat_tables([part.rows for part in read_shard(store, frozen, number)]).filter(again)


def _group_into_shards(left: Iterator[_RetryRows], frozen: Plan) -> Iterator[_RetryRows]:
    """The rows in shards that are no more work than the run's are, of whole parts but for the last."""
    waiting = _RetryRows()
    for part in _group_into_parts(left, frozen.part_images):
        both = waiting + part
        if waiting.images and (both.work > 1 + WORK_TOLERANCE or both.images > MAX_SHARD_IMAGES):
            yield waiting
            both = part
        waiting = both
    if waiting.images:
        yield waiting


def _group_into_parts(left: Iterator[_RetryRows], size: int) -> Iterator[_RetryRows]:
    waiting = _RetryRows()
    for rows in left:
        for piece in rows.split(size - waiting.images, size):
            waiting += piece
            if waiting.images == size:
                yield replace(waiting, tables=(pa.concat_tables(waiting.tables).combine_chunks(),))
                waiting = _RetryRows()
    if waiting.images:
        yield waiting


def _write_shard(store: Store, number: int, each: _RetryRows) -> _PlannedShard:
    rows = pa.concat_tables(each.tables).combine_chunks()
    content = to_parquet(rows)
    key = shard_key(number)
    # Without a plan, what is there is left of a planning that was killed, on a manifest that may have changed since.
    if not store.create(key, content) and store.read(key) != content:
        store.replace(key, content)
    truncated = pc.sum(rows["truncated"]).as_py() or 0
    return _PlannedShard(
        Shard(rows.num_rows, hashlib.sha256(content).hexdigest()),
        (each.first, each.last),
        truncated,
    )


@dataclass(frozen=True, slots=True)
class RetryResult:
    """A run after a round: the round's number and how many images it held. Both are 0 where nothing was left."""

    uri: str
    round: int
    images: int
    summary: Summary


def retry(
    uri: str,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult], None] = lambda _: None,
) -> RetryResult:
    """Make again what is not ok in the run at `uri`, but for what the safety checker filtered.

    Stopped and done again, it goes on with the same round. Raises what the steps raise: Incomplete where the run was
    never aggregated, or where too many images are not ok after the round.
    """
    progress, stop = progress or NoProgress(), stop or Stop()
    run, _ = resolve_run(uri)
    store = open_store(run)
    there = plan_next_round(store, load_plan(store))
    if there is None:
        # A round that was finished by a retry killed just before the run was has nothing left, and the run no end.
        done = store.exists(SUCCESS_KEY)
        return RetryResult(store.uri, 0, 0, load_summary(store) if done else aggregate(store.uri))
    planned(PlanResult(there.plan, there.store.uri, adopted=False))
    # Only where pixels are made: torch takes seconds to import, and planning needs none of it.
    from imagekiln.steps.generate.step import denoiser_loader, generate_shard

    open_denoiser = denoiser_loader(there.store, there.plan)
    progress.start(there.plan.counts.images)
    for number in range(len(there.plan.shards)):
        generate_shard(there.store, there.plan, number, open_denoiser, progress, stop)
    progress.close()
    return RetryResult(
        store.uri, there.plan.round, there.plan.counts.images, aggregate(there.store.uri)
    )
