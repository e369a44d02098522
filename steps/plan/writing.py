"""Writing of a new plan: its shards, its lists of rows and, last, plan.json."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import hash_entries
from imagekiln.steps.models.facts import default_image_size
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.plan.image_sql import reads_references
from imagekiln.steps.plan.input_files import input_fingerprint
from imagekiln.steps.plan.rejected_rows import locate_rejected_rows
from imagekiln.steps.runs.commits import digest_of
from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    duplicates_key,
    input_image_key,
    rejected_key,
    shard_key,
)
from imagekiln.steps.runs.plan import (
    PLAN_SCHEMA_VERSION,
    InputFacts,
    Plan,
    Shard,
    creation_time,
    plan_to_json,
)
from imagekiln.steps.runs.stats import Expectation
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
    store: Store, run_id: str, draft: PlanDraft, scratch: Path, expected: Expectation | None
) -> Plan | None:
    """Write the objects of a draft, then plan.json; None if another process wrote that first."""
    inputs = draft.inputs
    job = inputs.job
    with ThreadPoolExecutor(WRITERS) as pool:
        shards = tuple(
            _write_shards(
                store,
                job,
                draft,
                pool,
            )
        )
    rows = locate_rejected_rows(inputs.files, draft.catalog)
    rejected = _write_rows(
        store,
        rejected_key,
        REJECTED_SCHEMA,
        rows,
        scratch,
    )
    rows = draft.catalog.iter_duplicates()
    duplicates = _write_rows(
        store,
        duplicates_key,
        DUPLICATE_SCHEMA,
        rows,
        scratch,
    )
    width, height = default_image_size(job, inputs.model.facts)
    plan = Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        run_id=run_id,
        created_at=creation_time(),
        job=job,
        width=width,
        height=height,
        model=inputs.model.facts,
        input=InputFacts(
            len(inputs.files),
            inputs.rows,
            input_fingerprint(inputs.files),
            inputs.files[0].source.runs,
        ),
        counts=draft.catalog.counts,
        part_images=draft.sharding.part_images,
        shards=shards,
        rejected=rejected,
        duplicates=duplicates,
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
        expected=expected,
        has_references=reads_references(job, inputs.model.facts)
        and any("reference_images" in (group.input_images or "") for group in draft.catalog.groups),
    )
    return plan if store.create(PLAN_KEY, plan_to_json(plan)) else None


def write_rejected(store: Store, scratch: Path, rows: Iterator[pa.RecordBatch]) -> str:
    """Write the rejected rows of a refused input. Returns the URI of the list."""
    sha256 = _write_rows(
        store,
        rejected_key,
        REJECTED_SCHEMA,
        rows,
        scratch,
    )
    return store.uri_of(rejected_key(sha256))


def store_input_image(store: Store, digest: str, content: bytes) -> None:
    """Store an input image unless the run already has it."""
    create_once(store, input_image_key(digest), content)


def _write_rows(
    store: Store,
    key_of: Callable[[str], str],
    schema: pa.Schema,
    rows: Iterator[pa.RecordBatch],
    scratch: Path,
) -> str:
    # There may be as many rows as in the input. Written to disk first, they are in memory only as
    # compressed Parquet.
    path = scratch / "listed.parquet"
    write_parquet(path, schema, rows)
    content = path.read_bytes()
    sha256 = digest_of(content)
    store.create(key_of(sha256), content)
    return sha256


def _write_shards(
    store: Store, job: Job, draft: PlanDraft, pool: ThreadPoolExecutor
) -> Iterator[Shard]:
    pending: deque[Future[Shard]] = deque()
    for number, rows in enumerate(draft.iter_shards()):
        is_first = number == 0
        check_store = is_first and job.unconditional_writes == "refuse"
        pending.append(
            pool.submit(
                _write_shard,
                store,
                number,
                rows,
                check_store,
            )
        )
        # The first shard checks conditional writes. Nothing else is written before this check.
        if is_first or len(pending) > WRITERS:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _write_shard(store: Store, number: int, rows: pa.Table, check_store: bool) -> Shard:
    if rows.nbytes > MAX_SHARD_BYTES:  # readers refuse larger shards
        most = max(1, rows.num_rows * MAX_SHARD_BYTES // rows.nbytes)
        raise BadInput(
            f"the {rows.num_rows} rows of a shard have {rows.nbytes} bytes; at most "
            f"{MAX_SHARD_BYTES} fit. Set shard.images to less than {most}, or carry fewer columns."
        )
    content = to_parquet(rows)
    shard = Shard(rows.num_rows, digest_of(content))
    key = shard_key(number, shard.sha256)
    store.create(key, content)
    if check_store:
        require_conditional_writes(store, key, content)
    return shard
