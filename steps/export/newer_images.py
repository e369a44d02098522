"""Images that a source has and its export lacks, since they were made after it was planned."""

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.export.plan import ExportPlan
from imagekiln.steps.runs.finished_runs import find_finished_runs
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

READERS = 16
MAX_NAMED_RUNS = 3


def require_none_newer(source: Store, store: Store, plan: ExportPlan, *, is_new: bool) -> None:
    """Raise Incomplete where an export that is complete lacks images of its source.

    A command after the export would take it for all that there is. Those that `retry` made count.
    """
    newer = _count_newer_images(source, plan)
    if not newer:
        return
    done = "Exported" if is_new else "Already exported"
    runs = pluralize(len(newer), "finished run")
    images = pluralize(sum(newer.values()), "image")
    verb = "is" if len(newer) == 1 else "are"
    names = list(newer)
    if len(names) > MAX_NAMED_RUNS:
        names[MAX_NAMED_RUNS:] = [f"{len(names) - MAX_NAMED_RUNS:,} more"]
    raise Incomplete(
        f"{store.uri}: {done}, but {runs} ({images}) {verb} not in it: {', '.join(names)}. "
        "Export to another folder."
    )


def _count_newer_images(source: Store, plan: ExportPlan) -> dict[str, int]:
    """How many images each finished run has that were not there when the export was planned."""
    exported = {run.run_id: run.images for run in plan.runs}
    folders = dict.fromkeys(exported, source)
    if not plan.is_run:
        folders = {
            entry.run_id: open_store(f"{source.uri}/{entry.run_id}")
            for entry in find_finished_runs(source.uri)
        }
    stores = list(folders.values())

    def load(index: int) -> Summary:
        return load_summary(stores[index])

    newer: dict[str, int] = {}
    summaries = map_ordered(load, len(stores), READERS)
    for run_id, summary in zip(folders, summaries, strict=True):
        images = summary.ok - exported.get(run_id, 0)
        if images > 0:
            newer[run_id] = images
    return newer
