"""The objects of a new plan: its shards, its lists of rows, and plan.json as the last."""

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import hash_entries
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs
from imagekiln.steps.plan.existing_images import freeze_existing_runs
from imagekiln.steps.runs.keys import DUPLICATES_KEY, REJECTED_KEY, SHARDS_FOLDER, shard_key
from imagekiln.steps.runs.plan import PLAN_SCHEMA_VERSION, Plan, Shard, create_plan, creation_time
from imagekiln.steps.runs.tables import (
    DUPLICATE_SCHEMA,
    MAX_SHARD_BYTES,
    REJECTED_SCHEMA,
    to_parquet,
    write_parquet,
)
from imagekiln.steps.storage.store import Store, create_once, require_conditional_writes

WRITERS = 4


def write_plan(
    store: Store,
    run_id: str,
    inputs: PlanInputs,
    draft: PlanDraft,
    scratch: Path,
    existing: Plan | None = None,
) -> Plan:
    """Write the draft's objects, and return the plan that is stored.

    Where it is `existing`, what is missing of it is written again. Raises BadInput where other
    objects are in the way, TryAgain.
    """
    job = inputs.job
    freeze_existing_runs(store, job, inputs.existing_runs)
    with ThreadPoolExecutor(WRITERS) as pool:
        shards = tuple(_write_shards(store, job, draft, pool))
    replace_rejected(store, scratch, draft.iter_rejected())
    _write_rows(store, DUPLICATES_KEY, DUPLICATE_SCHEMA, draft.catalog.iter_duplicates(), scratch)
    width, height = draft.default_size
    plan = Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        run_id=run_id,
        created_at=creation_time(),
        job=job,
        width=width,
        height=height,
        model=inputs.model.facts,
        input=draft.input,
        counts=draft.counts,
        part_images=draft.sharding.part_images,
        shards=shards,
        existing_runs=inputs.existing_runs,
        batch_sizes=draft.batch_sizes,
        adapters=inputs.model.adapters,
        loras=inputs.model.loras,
        fused_loras=inputs.fused_loras,
        scores=inputs.model.scores,
        entries=hash_entries(job),
        passes=inputs.model.passes,
        revisions=inputs.model.revisions,
        sample_images=0 if draft.sample is None else draft.sharding.shard_images[0],
        rewrite=inputs.rewrite,
    )
    return create_plan(store, existing or plan)


def is_whole(store: Store, plan: Plan) -> bool:
    """Whether the shards and lists of a plan are all there.

    A removal takes the first shard before all else. But a planner that was frozen meanwhile may
    have written that one again, and nothing after it.
    """
    listed = {entry.key for entry in store.list_folder(SHARDS_FOLDER)}
    has_shards = listed.issuperset(map(shard_key, range(len(plan.shards))))
    return has_shards and store.exists(REJECTED_KEY) and store.exists(DUPLICATES_KEY)


def replace_rejected(store: Store, scratch: Path, rows: Iterator[pa.RecordBatch]) -> str:
    """Write rejected.parquet, over that of an attempt whose rows were refused; its URI."""
    path = scratch / REJECTED_KEY
    write_parquet(path, REJECTED_SCHEMA, rows)
    store.replace(REJECTED_KEY, path.read_bytes())
    return store.uri_of(REJECTED_KEY)


def require_same_shards(store: Store, removed: Plan, draft: PlanDraft) -> None:
    """Raise BadInput where a run that has lost a shard or list would be planned otherwise now.

    What is left of it, such as its parts, goes with the shards that it had.
    """
    shards = tuple(_shard_of(to_parquet(rows), rows) for rows in draft.iter_shards())
    if shards != removed.shards:
        raise BadInput(
            f"{store.uri}: shards or lists of its plan are missing, as after a removal that was "
            "interrupted, and they would be others now, since its input, or runs before it, have "
            "changed. Choose another run_id, or remove what is left of it with `gc --remove`."
        )


def _write_rows(
    store: Store, key: str, schema: pa.Schema, rows: Iterator[pa.RecordBatch], scratch: Path
) -> None:
    # There may be as many as input rows: by way of the disk, memory holds them compressed.
    write_parquet(scratch / key, schema, rows)
    create_once(store, key, (scratch / key).read_bytes())


def _write_shards(
    store: Store, job: Job, draft: PlanDraft, pool: ThreadPoolExecutor
) -> Iterator[Shard]:
    """Write the shards, a few at a time, in the order of their numbers."""
    pending: deque[Future[Shard]] = deque()
    for number, rows in enumerate(draft.iter_shards()):
        is_first = number == 0
        check_store = is_first and job.unconditional_writes == "refuse"
        pending.append(pool.submit(_write_shard, store, number, rows, check_store))
        # The first shard shows what the store honors: nothing else is written before it is.
        if is_first or len(pending) > WRITERS:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _write_shard(store: Store, number: int, rows: pa.Table, check_store: bool) -> Shard:
    _require_shard_size(rows)
    content = to_parquet(rows)
    create_once(store, shard_key(number), content)
    if check_store:
        require_conditional_writes(store, shard_key(number), content)
    return _shard_of(content, rows)


def _shard_of(content: bytes, rows: pa.Table) -> Shard:
    return Shard(rows.num_rows, hashlib.sha256(content).hexdigest())


def _require_shard_size(rows: pa.Table) -> None:
    """Raise BadInput where the rows of a shard are more than is read back of one."""
    if rows.nbytes > MAX_SHARD_BYTES:
        most = max(1, rows.num_rows * MAX_SHARD_BYTES // rows.nbytes)
        raise BadInput(
            f"the {rows.num_rows} rows of a shard have {rows.nbytes} bytes; at most "
            f"{MAX_SHARD_BYTES} fit. Set shard.images to less than {most}, or carry fewer columns."
        )
