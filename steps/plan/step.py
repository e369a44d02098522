"""The plan step: prompt rows become image rows, image rows become shards, and plan.json freezes them."""

import hashlib
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.adapters import adapter_keys, digest_with_adapters
from imagekiln.steps.models.facts import weights_digest
from imagekiln.steps.models.lora_files import LoraFacts, digest_with_loras, load_lora_facts
from imagekiln.steps.plan.batch_sizes import load_tuning, tuning_key
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.plan.existing_images import choose_existing_runs, freeze_existing_runs
from imagekiln.steps.plan.input_files import gather_sources, input_fingerprint
from imagekiln.steps.runs.keys import (
    DUPLICATES_KEY,
    PLAN_KEY,
    REJECTED_KEY,
    input_image_key,
    shard_key,
)
from imagekiln.steps.runs.plan import PLAN_SCHEMA_VERSION, Plan, Shard, parse_plan, plan_to_json
from imagekiln.steps.runs.tables import DUPLICATE_SCHEMA, REJECTED_SCHEMA, to_parquet, write_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, create_once, require_conditional_writes

WRITERS = 4


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan, where it lies, and whether it was there before."""

    plan: Plan
    uri: str
    adopted: bool


def make_plan(job: Job, *, must_exist: bool = False) -> PlanResult:
    """Plan the job under its output, or adopt the plan that is there already with equal settings.

    With `must_exist`, nothing is planned anew: Missing says that there is no such run.
    Raises BadInput where the input, the model or the output is not as it must be, TryAgain where storage fails.
    """
    job = job.without_cluster()
    files = weights_digest(job.model)
    digest = _combine_digests(files, adapter_keys(job.model), load_lora_facts(job.model))
    if job.run_id is not None and (there := _adopt_existing(job, job.run_id, digest)):
        return there
    with tempfile.TemporaryDirectory(prefix="imagekiln-plan-") as folder:
        spool = Path(folder)
        found = gather_sources(job.prompt_patterns, spool)
        tuned = load_tuning(job, lambda: files)
        decides = digest, tuning_key(job, tuned, found)
        run_id = job.run_id or derive_run_id(job, input_fingerprint(found), *decides)
        if there := _adopt_existing(job, run_id, digest):
            return there
        if must_exist:
            raise Missing(
                f"{job.output.rstrip('/')}/{run_id}: there is no such run to retry. Run the job first."
            )
        store = _open_run_store(job, run_id)
        looked_at = choose_existing_runs(store, job, run_id)
        with closing(
            PlanDraft(job, found, spool, looked_at, tuned, partial(_store_input_image, store))
        ) as draft:
            return _write_plan(draft, run_id, spool)


def derive_run_id(job: Job, fingerprint: str, *more: str) -> str:
    """The name of a run that was given none: the job's, and a hash of settings, input and what else decides."""
    settings = job.model_dump_json(exclude={"output", "cluster", "price_per_hour"})
    decides = "".join([settings, fingerprint, *more])
    return f"{job.name}-{hashlib.sha256(decides.encode()).hexdigest()[:12]}"


def _open_run_store(job: Job, run_id: str) -> Store:
    return open_store(f"{job.output.rstrip('/')}/{run_id}")


def _combine_digests(
    files: str, adapters: Mapping[str, str], loras: Mapping[str, LoraFacts]
) -> str:
    """What identifies all files that a run is drawn with."""
    return digest_with_loras(digest_with_adapters(files, adapters), loras)


def _store_input_image(store: Store, digest: str, picture: bytes) -> None:
    create_once(store, input_image_key(digest), picture)


def _adopt_existing(job: Job, run_id: str, digest: str) -> PlanResult | None:
    store = _open_run_store(job, run_id)
    try:
        content = store.read(PLAN_KEY)
    except Missing:
        return None
    there = parse_plan(content, store.uri_of(PLAN_KEY))
    if _comparable_settings(there.job) != _comparable_settings(job):
        raise BadInput(
            f"{store.uri}: holds a plan with {_describe_difference(there.job, job)}. Choose another run_id or output."
        )
    if _combine_digests(there.model.digest, there.adapters, there.loras) != digest:
        raise BadInput(
            f"{store.uri}: was planned with other files of {job.model.id} or adapters. Choose another run_id or output."
        )
    return PlanResult(there, store.uri, adopted=True)


def _comparable_settings(job: Job) -> dict[str, object]:
    """What must be equal for a plan to be adopted: all but prices, and the folder, which has several names."""
    return job.model_dump(mode="json", exclude={"output", "price_per_hour"})


def _describe_difference(there: Job, wanted: Job) -> str:
    old, new = _comparable_settings(there), _comparable_settings(wanted)
    key = next(key for key in new if old[key] != new[key])
    return f"another `{key}`"


def _write_plan(draft: PlanDraft, run_id: str, spool: Path) -> PlanResult:
    store = _open_run_store(draft.job, run_id)
    freeze_existing_runs(store, draft.job, draft.existing_runs)
    with ThreadPoolExecutor(WRITERS) as pool:
        shards = tuple(_write_shards(store, draft, pool))
    for key, schema, rows in (
        (REJECTED_KEY, REJECTED_SCHEMA, draft.iter_rejected()),
        (DUPLICATES_KEY, DUPLICATE_SCHEMA, draft.iter_duplicates()),
    ):
        # There may be as many of them as input rows: by way of the disk, memory holds them in small groups, and packed.
        write_parquet(spool / key, schema, rows)
        create_once(store, key, (spool / key).read_bytes())
    made = Plan(
        PLAN_SCHEMA_VERSION,
        run_id,
        draft.job,
        *draft.default_size,
        draft.model,
        draft.input,
        draft.counts,
        draft.sharding.part_images,
        shards,
        draft.existing_runs,
        batch_sizes=draft.batch_sizes,
        adapters=draft.adapters,
        loras=draft.loras,
    )
    create_once(store, PLAN_KEY, plan_to_json(made))
    return PlanResult(made, store.uri, adopted=False)


def _write_shards(store: Store, draft: PlanDraft, pool: ThreadPoolExecutor) -> Iterator[Shard]:
    """Write the shards, a few at a time, in the order of their numbers."""
    careful = draft.job.unconditional_writes == "refuse"
    pending: deque[Future[Shard]] = deque()
    for number, rows in enumerate(draft.iter_shards()):
        pending.append(pool.submit(_write_shard, store, number, rows, careful and number == 0))
        # The first shard shows what the store honours, so nothing else is written before it is.
        if number == 0 or len(pending) > WRITERS:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _write_shard(store: Store, number: int, rows: pa.Table, check_store: bool) -> Shard:
    content = to_parquet(rows)
    create_once(store, shard_key(number), content)
    if check_store:
        require_conditional_writes(store, shard_key(number), content)
    return Shard(rows.num_rows, hashlib.sha256(content).hexdigest())
