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

from imagekiln.steps import (
    adapter_files,
    batching,
    commit,
    earlier,
    lora_files,
    model,
    names,
    plan,
    sources,
    tables,
)
from imagekiln.steps.draft import Draft
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job import Job
from imagekiln.steps.lora_files import LoraFacts
from imagekiln.steps.plan import Plan, Shard
from imagekiln.steps.storage import Store, open_store

WRITERS = 4


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, where it lies, and whether it was there before."""

    plan: Plan
    uri: str
    adopted: bool


def make_plan(job: Job, *, must_exist: bool = False) -> Planned:
    """Plan the job under its output, or adopt the plan that is there already with equal settings.

    With `must_exist`, nothing is planned anew: Missing says that there is no such run.
    Raises BadInput where the input, the model or the output is not as it must be, TryAgain where storage fails.
    """
    job = job.without_cluster()
    files = model.digest(job.model)
    digest = _digest(files, adapter_files.keys(job.model), lora_files.facts(job.model))
    if job.run_id is not None and (there := _adopted(job, job.run_id, digest)):
        return there
    with tempfile.TemporaryDirectory(prefix="imagekiln-plan-") as folder:
        spool = Path(folder)
        found = sources.gather(job.patterns, spool)
        tuned = batching.known(job, lambda: files)
        decides = digest, batching.used(job, tuned, found)
        run_id = job.run_id or derived_run_id(job, sources.fingerprint(found), *decides)
        if there := _adopted(job, run_id, digest):
            return there
        if must_exist:
            raise Missing(f"{job.output.rstrip('/')}/{run_id}: there is no such run to retry. Run the job first.")
        store = _store(job, run_id)
        looked_at = earlier.chosen(store, job, run_id)
        with closing(Draft(job, found, spool, looked_at, tuned, partial(_keep, store))) as draft:
            return _write(draft, run_id, spool)


def derived_run_id(job: Job, fingerprint: str, *more: str) -> str:
    """The name of a run that was given none: the job's, and a hash of settings, input and what else decides."""
    settings = job.model_dump_json(exclude={"output", "cluster", "price_per_hour"})
    decides = "".join([settings, fingerprint, *more])
    return f"{job.name}-{hashlib.sha256(decides.encode()).hexdigest()[:12]}"


def _store(job: Job, run_id: str) -> Store:
    return open_store(f"{job.output.rstrip('/')}/{run_id}")


def _digest(files: str, adapters: Mapping[str, str], loras: Mapping[str, LoraFacts]) -> str:
    """What identifies all files that a run is drawn with."""
    return lora_files.joined(adapter_files.joined(files, adapters), loras)


def _keep(store: Store, digest: str, picture: bytes) -> None:
    commit.once(store, names.input_picture(digest), picture)


def _adopted(job: Job, run_id: str, digest: str) -> Planned | None:
    store = _store(job, run_id)
    try:
        content = store.read(names.PLAN)
    except Missing:
        return None
    there = plan.parse(content, store.at(names.PLAN))
    if _settings(there.job) != _settings(job):
        raise BadInput(
            f"{store.uri}: holds a plan with {_difference(there.job, job)}. Choose another run_id or output."
        )
    if _digest(there.model.digest, there.adapters, there.loras) != digest:
        raise BadInput(
            f"{store.uri}: was planned with other files of {job.model.id} or adapters. Choose another run_id or output."
        )
    return Planned(there, store.uri, adopted=True)


def _settings(job: Job) -> dict[str, object]:
    """What must be equal for a plan to be adopted: all but prices, and the folder, which has several names."""
    return job.model_dump(mode="json", exclude={"output", "price_per_hour"})


def _difference(there: Job, wanted: Job) -> str:
    old, new = _settings(there), _settings(wanted)
    key = next(key for key in new if old[key] != new[key])
    return f"another `{key}`"


def _write(draft: Draft, run_id: str, spool: Path) -> Planned:
    store = _store(draft.job, run_id)
    earlier.freeze(store, draft.job, draft.looked_at)
    with ThreadPoolExecutor(WRITERS) as pool:
        shards = tuple(_written(store, draft, pool))
    for key, schema, rows in (
        (names.REJECTED, tables.REJECTED, draft.rejected()),
        (names.DUPLICATES, tables.DUPLICATE, draft.duplicates()),
    ):
        # There may be as many of them as input rows: by way of the disk, memory holds them in small groups, and packed.
        tables.write(spool / key, schema, rows)
        commit.once(store, key, (spool / key).read_bytes())
    made = Plan(
        plan.SCHEMA_VERSION,
        run_id,
        draft.job,
        *draft.size,
        draft.model,
        draft.input,
        draft.counts,
        draft.cut.part_images,
        shards,
        draft.looked_at,
        batches=draft.batches,
        adapters=draft.adapters,
        loras=draft.loras,
    )
    commit.once(store, names.PLAN, plan.to_json(made))
    return Planned(made, store.uri, adopted=False)


def _written(store: Store, draft: Draft, pool: ThreadPoolExecutor) -> Iterator[Shard]:
    """Write the shards, a few at a time, in the order of their numbers."""
    careful = draft.job.unconditional_writes == "refuse"
    pending: deque[Future[Shard]] = deque()
    for number, rows in enumerate(draft.shards()):
        pending.append(pool.submit(_write_shard, store, number, rows, careful and number == 0))
        # The first shard shows what the store honours, so nothing else is written before it is.
        if number == 0 or len(pending) > WRITERS:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _write_shard(store: Store, number: int, rows: pa.Table, check_store: bool) -> Shard:
    content = tables.to_parquet(rows)
    commit.once(store, names.shard(number), content)
    if check_store:
        commit.require_conditional_writes(store, names.shard(number), content)
    return Shard(rows.num_rows, hashlib.sha256(content).hexdigest())
