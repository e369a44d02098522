"""Retries of failed and blank images: a commit announces a retry, and a later one counts it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import permanent_mask
from imagekiln.steps.aggregate.step import aggregate, aggregate_run, finish_run
from imagekiln.steps.aggregate.summary import Summary, summary_of
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import require_entries
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.commits import (
    Head,
    Retry,
    commit_next,
    create_commit,
    digest_of,
    plan_of_retry,
)
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import shard_key
from imagekiln.steps.runs.parts import part_to_parquet
from imagekiln.steps.runs.plan import Plan, Shard, creation_time
from imagekiln.steps.runs.run import Run, open_run, read_shard_columns, retry_address
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.runtime.signals import Stop

OUTCOME_COLUMNS = ["status", "error"]
ENDED = "the retry was ended by `forget` before it made this image"
RETRIED_STATUSES = ("blank", "failed")  # not `filtered`, which is not an error


@dataclass(frozen=True, slots=True)
class RetryResult:
    """A run after a retry: its number, 0 if there was none, and the number of images made.

    Images of parts that were missing are included.
    """

    uri: str
    retry: int
    images: int
    summary: Summary


def retry(
    uri: str,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult], None] = lambda _: None,
    *,
    include_permanent: bool = False,
) -> RetryResult:
    """Regenerate the images of the run at `uri` that are not ok, except filtered ones.

    Missing parts are made first, as planned. Images with permanent failures are skipped, unless
    `include_permanent`. An interrupted retry is resumed. Raises the errors of the steps: Incomplete
    if the run was never aggregated, or if too many images are not ok afterwards.
    """
    run = open_run(uri)
    require_libraries()
    require_entries(run.plan.job)
    progress = progress or NoProgress()
    stop = stop or Stop()

    missing = _count_missing(run)
    if missing:
        _generate(run, run.plan, progress, stop)
        with suppress(Incomplete):  # images that are not ok are retried now
            aggregate_run(run)
    run, plan = announce_retry(run, include_permanent=include_permanent)
    if plan is None:
        summary = finish_run(run)
        return RetryResult(run.store.uri, 0, missing, summary)

    address = retry_address(run.store.uri, plan.retry)
    planned(PlanResult(plan, address, adopted=False))
    _generate(run, plan, progress, stop)
    return RetryResult(
        uri=run.store.uri,
        retry=plan.retry,
        images=missing + plan.counts.images,
        summary=aggregate(address),
    )


def plan_retry(job: Job) -> PlanResult:
    """Plan the next retry of the job's run; if nothing is left, return a plan without shards.

    Raises Missing if there is no such run, and the errors of `announce_retry`.
    """
    planned = make_plan(job, must_exist=True)
    run = open_run(planned.uri)
    if _count_missing(run):  # made first, as the job would make them
        return PlanResult(run.plan, run.store.uri, adopted=True)
    run, plan = announce_retry(run)
    if plan is None:
        no_images = replace(run.plan.counts, images=0)
        empty = replace(run.plan, counts=no_images, shards=())
        return PlanResult(empty, run.store.uri, adopted=True)
    address = retry_address(run.store.uri, plan.retry)
    return PlanResult(plan, address, adopted=False)


def announce_retry(run: Run, *, include_permanent: bool = False) -> tuple[Run, Plan | None]:
    """Return the retry to make: an unfinished one, or a new one of all images that are not ok.

    Skips images with permanent failures, unless `include_permanent`. Returns None if nothing is
    left. No image is in two unfinished retries, and no image that is ok is retried. Raises
    Incomplete if the run was never aggregated, BadInput, TryAgain.
    """

    def attempt(head: Head) -> tuple[Run, Plan | None] | None:
        current = replace(run, head=head)
        _require_aggregated(current)
        _require_no_takedown(current)
        if uncounted := head.uncounted_retry:
            return current, plan_of_retry(run.plan, uncounted)
        announced = _write_shards(current, include_permanent)
        if not announced.shards:
            return current, None
        retries = (*head.commit.retries, announced)
        commit = replace(head.commit, kind="retry", retries=retries, is_complete=False)
        new_head = create_commit(run.store, head, commit)
        if new_head is None:
            return None
        return replace(run, head=new_head), plan_of_retry(run.plan, announced)

    return commit_next(run.store, attempt)


def end_retry(run: Run, retry: Retry) -> None:
    """Count an unfinished retry, with its missing images as failed. Its model may be gone."""
    plan = plan_of_retry(run.plan, retry)
    for number in range(len(plan.shards)):
        for part in read_shard(run.store, plan, number):
            places = range(part.rows.num_rows)
            images = [EncodedImage(place, "failed", ENDED) for place in places]
            content = part_to_parquet(part.rows, images, part.added)
            run.store.create(part.key, content)
    with suppress(Incomplete):  # some images are not ok
        aggregate_run(run)


def _count_missing(run: Run) -> int:
    """Count the images of missing parts that the job planned, as of the highest commit.

    Raises Incomplete if the run was never aggregated.
    """
    _require_aggregated(run)
    summary = summary_of(run.store, run.head)
    return 0 if summary is None else summary.missing


def _require_aggregated(run: Run) -> None:
    """Raise Incomplete if the run was never aggregated."""
    if run.plan.shards and not run.head.commit.manifests:
        raise Incomplete(
            f"{run.store.uri}: was never aggregated, so it is unknown what is left. Run the job, "
            f"or `{format_command('aggregate', run.store.uri)}`, first."
        )


def _require_no_takedown(run: Run) -> None:
    """Raise TryAgain during a takedown: one of its images might be made again."""
    if run.head.commit.takedown is not None:
        raise TryAgain(
            f"{run.store.uri}: images of it are being taken down. If the command that does so was "
            "interrupted, repeat it first."
        )


def _generate(run: Run, plan: Plan, progress: Progress, stop: Stop) -> None:
    # Imported only to generate pixels: torch takes seconds to import, and planning does not need
    # it.
    from imagekiln.steps.generate.step import generate_shards

    progress.start(plan.counts.images)
    shards = range(len(plan.shards))
    with meter_attempt(run, plan, progress, stop) as meter:
        generate_shards(run.store, plan, shards, meter, stop)
    progress.close()


def _write_shards(run: Run, include_permanent: bool) -> Retry:
    """Write the shards of the run's next retry, which no commit names yet."""
    number = run.head.number + 1
    shards: list[Shard] = []
    source_shards: list[tuple[int, int]] = []
    truncated_prompts = 0
    for tables in _group_into_shards(run, include_permanent):
        table = pa.concat_tables(tables.values()).combine_chunks()
        content = to_parquet(table)
        shard = Shard(table.num_rows, digest_of(content))
        run.store.create(shard_key(len(shards), shard.sha256, number), content)
        shards.append(shard)
        source_shards.append((min(tables), max(tables)))
        truncated = table.filter(table["truncated"])
        truncated_prompts += len(truncated["input_row"].unique())
    return Retry(
        number=number,
        created_at=creation_time(),
        shards=tuple(shards),
        source_shards=tuple(source_shards),
        truncated_prompts=truncated_prompts,
    )


def _group_into_shards(run: Run, include_permanent: bool) -> Iterator[dict[int, pa.Table]]:
    """Yield the rows of each shard of a retry, by the shards of the run that contain them.

    A shard of a retry is at most as much work as a shard of the run.
    """

    def read(number: int) -> pa.Table | None:
        return _rows_to_retry(run, number, include_permanent)

    tables: dict[int, pa.Table] = {}
    work = 0.0  # in shards of the run
    for number, rows in enumerate(map_ordered(read, len(run.plan.shards))):
        if rows is None:
            continue
        more_work = rows.num_rows / run.plan.shards[number].images
        if tables and work + more_work > 1:
            yield tables
            tables = {}
            work = 0.0
        tables[number] = rows
        work += more_work
    if tables:
        yield tables


def _rows_to_retry(run: Run, number: int, include_permanent: bool) -> pa.Table | None:
    manifest = read_shard_columns(run, number, OUTCOME_COLUMNS)
    status = manifest["status"]
    is_retried = pc.is_in(status, pa.array(RETRIED_STATUSES))
    if not include_permanent:
        is_permanent = permanent_mask(status, manifest["error"])
        is_retried = pc.and_not(is_retried, is_permanent)
    if not pc.any(is_retried).as_py():
        return None
    # All candidates of a group without a winner. Groups with a winner need no retry.
    candidates = run.plan.job.candidates
    groups = is_retried.to_numpy().reshape(-1, candidates)
    has_retried = groups.any(axis=1)
    mask = has_retried.repeat(candidates)
    rows = read_shard_rows(run.store, run.plan, number)
    return rows.filter(pa.array(mask))
