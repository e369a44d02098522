"""The runs in an output, and how each ended."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from imagekiln.steps.aggregate.summary import summary_of
from imagekiln.steps.aggregate.verdict import exceeded_gates
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.attempts import read_attempts, sum_spent
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.keys import PLAN_KEY, REGISTRY_FOLDER, REWRITES_FOLDER
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.run import Run, open_run, split_address
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

log = logging.getLogger(__name__)
READERS = 16
RunState = Literal["succeeded", "incomplete", "unfinished"]


@dataclass(frozen=True, slots=True)
class RunOverview:
    """Overview of a run.

    A run is `incomplete` if its last aggregation found too many problems, and `unfinished` if it
    was never aggregated and has no counts. `statuses` counts its images by status, `not_ok` the
    failed ones. `created_at` is the time of planning. `exceeded_gates` are the quality gates that
    made the run incomplete. `device_hours` and `cost` are None if unknown.
    """

    uri: str
    run_id: str
    job: str
    created_at: datetime
    state: RunState
    images: int
    ok: int | None = None
    not_ok: int | None = None
    statuses: Mapping[str, int] = field(default_factory=dict)
    elapsed_seconds: float | None = None
    device_hours: float | None = None
    cost: float | None = None
    exceeded_gates: tuple[str, ...] = ()


def list_runs(output: str) -> list[RunOverview]:
    """List the runs in a job's `output`, oldest first. Raises as `open_runs` does."""
    runs = open_runs(output, skips_unreadable=True)
    return sorted(describe_runs(runs), key=lambda run: (run.created_at, run.run_id))


def open_runs(uri: str, *, skips_unreadable: bool = False) -> list[Run]:
    """Open the run at `uri`, which may be the address of a retry, or the runs in an output.

    A run of a newer version, or with an unreadable plan, is skipped with a warning if
    `skips_unreadable`, and raises BadInput otherwise. Raises also as `find_runs` does.
    """
    run_uri, _ = split_address(uri)
    store = open_store(run_uri)
    if store.exists(PLAN_KEY):
        return [open_run(run_uri)]
    runs, unreadable = find_runs(store)
    for error in unreadable:
        if not skips_unreadable:
            raise error
        log.warning("%s It is not listed.", error)
    return [run for run in runs if not run.head.is_removed]


def find_runs(store: Store) -> tuple[list[Run], list[BadInput]]:
    """Find the runs in an output, including removed ones, and the errors of unreadable ones.

    Other folders are skipped. Raises Missing if there are no runs and it is not the output of any
    job, TryAgain.
    """
    names = [entry.key for entry in store.list_folder("") if entry.is_folder]
    runs: list[Run] = []
    unreadable: list[BadInput] = []
    for run in map_ordered(lambda index: _open_run(store, names[index]), len(names), READERS):
        if isinstance(run, Run):
            runs.append(run)
        elif run is not None:
            unreadable.append(run)
    is_output = REGISTRY_FOLDER in names or REWRITES_FOLDER in names
    if not (runs or unreadable or is_output):
        raise Missing(
            f"{store.uri}: holds no runs that this Imagekiln reads. Check the name, or name the "
            "`output` of a job."
        )
    return runs, unreadable


def _open_run(store: Store, name: str) -> Run | BadInput | None:
    """Open the run in a folder, or return the error of its plan; None if the folder has no run."""
    folder = open_store(f"{store.uri}/{name}")
    try:
        if not folder.exists(PLAN_KEY):
            return None
        plan = load_plan(folder)
        head = read_head(folder)
    except Missing:  # removed by another process meanwhile
        return None
    except BadInput as error:
        return error
    return Run(folder, plan, head) if plan.run_id == name else None


def describe_runs(runs: Sequence[Run]) -> list[RunOverview]:
    """Summarize each run. Unreadable runs are skipped with a warning. Raises TryAgain."""

    def describe(index: int) -> RunOverview | None:
        try:
            return _describe(runs[index])
        except BadInput as error:
            log.warning("%s It is not listed.", error)
            return None

    return list(filter(None, map_ordered(describe, len(runs), READERS)))


def _describe(run: Run) -> RunOverview:
    plan = run.plan
    summary = summary_of(run.store, run.head)
    if summary is not None and run.is_finished:
        device_hours: float | None = summary.device_hours
        cost = summary.cost
    else:  # it may have been resumed after its aggregation
        spent = sum_spent(read_attempts(run.store))
        device_hours = spent.gpu_hours or None
        cost = spent.complete_cost if spent.priced else None
    overview = RunOverview(
        uri=run.store.uri,
        run_id=plan.run_id,
        job=plan.job.name,
        created_at=plan.created_at,
        state="succeeded" if run.is_finished else "incomplete" if summary else "unfinished",
        images=plan.counts.images,
        device_hours=device_hours,
        cost=cost,
    )
    if summary is None:
        return overview
    exceeded = () if run.is_finished else exceeded_gates(summary, plan.job)
    return replace(
        overview,
        ok=summary.ok,
        not_ok=summary.not_ok,
        statuses=summary.statuses,
        elapsed_seconds=summary.elapsed_seconds,
        exceeded_gates=tuple(gate.gate for gate in exceeded),
    )
