"""Whether a later run holds all that an earlier one has."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from imagekiln.steps import names, tables
from imagekiln.steps.database import Database
from imagekiln.steps.errors import Missing
from imagekiln.steps.in_order import in_order
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store


@dataclass(frozen=True, slots=True)
class Run:
    """A run, and when it was finished, in seconds since 1970: None where it is not."""

    run_id: str
    store: Store
    plan: Plan
    finished: float | None


def superseded(runs: list[Run]) -> dict[str, str]:
    """Of these runs, those of which every good image is in the next later one of the same job name: it, by run id.

    Each is compared with the next one alone. So what holds for a chain of them holds for the last.
    """
    last: dict[str, Run] = {}
    found: dict[str, str] = {}
    for at, each in sorted(((run.finished or 0.0, run) for run in runs), key=lambda pair: pair[0]):
        before = last.get(each.plan.job.name)
        if before is not None and (before.finished or 0.0) < at and _holds(each, before):
            found[before.run_id] = each.run_id
        last[each.plan.job.name] = each
    return found


def _holds(later: Run, earlier: Run) -> bool:
    if later.plan.counts.images < earlier.plan.counts.images * (1 - earlier.plan.job.limits.failed_share):
        return False
    with TemporaryDirectory(prefix="imagekiln-gc-") as spool, closing(Database(Path(spool))) as database:
        try:
            for name, run in (("earlier", earlier), ("later", later)):
                _load(database, name, run)
        except Missing:  # a run without its manifest: nothing is known
            return False
        lacking = database.table("SELECT count(*) AS n FROM (SELECT id FROM earlier EXCEPT SELECT id FROM later)")
        there = database.table("SELECT count(*) AS n FROM earlier")
        return bool(there["n"][0].as_py() and not lacking["n"][0].as_py())


def _load(database: Database, name: str, run: Run) -> None:
    database.run(f"CREATE TABLE {name} (id UUID)")
    rows = in_order(lambda number: _ids(run.store, number), len(run.plan.shards))
    for table in rows:
        database.register("shard_rows", table.to_reader())
        database.run(f"INSERT INTO {name} SELECT CAST(image_id AS UUID) FROM shard_rows WHERE status = 'ok'")


def _ids(store: Store, number: int) -> pa.Table:
    return tables.columns(store, names.manifest(number), ("image_id", "status"))
