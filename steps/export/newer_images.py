"""Images that a source has and its export lacks, since they were made after it was planned."""

from dataclasses import dataclass

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.export.plan import ExportPlan
from imagekiln.steps.runs.finished_runs import find_finished_runs
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

READERS = 16
MAX_NAMED_RUNS = 3


@dataclass(frozen=True, slots=True)
class NewerImages:
    """How many images a finished run has that were not there when the export was planned."""

    run_id: str
    images: int


def require_none_newer(source: Store, store: Store, plan: ExportPlan, *, is_new: bool) -> None:
    """Raise Incomplete where an export that is complete lacks images of its source.

    A command after the export would take it for all that there is. Those that `retry` made count.
    """
    newer = _find_newer_images(source, plan)
    if not newer:
        return
    done = "Exported" if is_new else "Already exported"
    runs = pluralize(len(newer), "finished run")
    images = pluralize(sum(run.images for run in newer), "image")
    verb = "is" if len(newer) == 1 else "are"
    names = ", ".join(run.run_id for run in newer[:MAX_NAMED_RUNS])
    more = f" and {len(newer) - MAX_NAMED_RUNS:,} more" if len(newer) > MAX_NAMED_RUNS else ""
    raise Incomplete(
        f"{store.uri}: {done}, but {runs} ({images}) {verb} not in it: {names}{more}. "
        "Export to another folder."
    )


def _find_newer_images(source: Store, plan: ExportPlan) -> list[NewerImages]:
    """Those of each finished run of the source, in the order in which the runs were finished."""
    exported = {run.run_id: run.images for run in plan.runs}
    folders = {run.run_id: source for run in plan.runs}
    if not plan.is_run:
        run_ids = [entry.run_id for entry in find_finished_runs(source.uri)]
        folders = {run_id: open_store(f"{source.uri}/{run_id}") for run_id in run_ids}
    summaries = map_ordered(
        lambda index: load_summary(list(folders.values())[index]), len(folders), READERS
    )
    found = [
        NewerImages(run_id, summary.ok - exported.get(run_id, 0))
        for run_id, summary in zip(folders, summaries, strict=True)
    ]
    return [run for run in found if run.images > 0]
