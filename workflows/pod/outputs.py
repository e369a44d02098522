"""The files that a step leaves for Argo: output parameters of plan, and the report of aggregate."""

from itertools import count, takewhile
from math import ceil
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ClusterSettings
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import PLOT_NAMES, REPORT_KEY, SUCCESS_KEY, plot_key, thumbnail_key
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.storage import open_store
from imagekiln.workflows.templates.child_workflows import MAX_PODS

# Argo replaces what stands in double braces, and Kubernetes $(...) in a container's arguments.
VARIABLE_MARKERS = ("{{", "}}", "$(")


def write_plan_outputs(
    folder: Path, planned: PlanResult, cluster: ClusterSettings, workers: int = 1
) -> None:
    """Write plan's output parameters, one file each: the run, pod counts and scheduling.

    A pod makes one shard per worker. A run that has finished needs no pods. Raises BadInput where
    Argo could not pass on the run's URI.
    """
    _require_safe_uri(planned.uri)
    pods = ceil(len(planned.plan.shards) / workers)
    if open_store(planned.uri).exists(SUCCESS_KEY):
        pods = 0
    pods_here = pods
    child_workflows = 0
    if pods > MAX_PODS:
        pods_here = 0
        child_workflows = ceil(pods / MAX_PODS)

    parameters = {
        "run": planned.uri,
        "pods": str(pods),
        "pods_here": str(pods_here),
        "workflows": str(child_workflows),
        "parallelism": str(cluster.parallelism),
        "priority": str(cluster.priority),
        "priority_class": cluster.priority_class or "",
        "images": str(planned.plan.counts.images),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in parameters.items():
        (folder / name).write_text(text, encoding="utf-8")


def copy_report(folder: Path, uri: str) -> None:
    """Copy the report of a run, or of a round's run, with its images to `folder`/report.

    Where there is no report, do nothing.
    """
    run, *_ = resolve_run(uri)
    store = open_store(run)
    plots = [plot_key(name, dark=dark) for name in PLOT_NAMES for dark in (False, True)]
    page = [key for key in (REPORT_KEY, *plots) if store.exists(key)]
    thumbnails = takewhile(store.exists, map(thumbnail_key, count()))
    for key in (*page, *thumbnails):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(key))


def _require_safe_uri(uri: str) -> None:
    has_marker = any(marker in uri for marker in VARIABLE_MARKERS)
    if has_marker or not uri.isprintable():  # control characters break Argo's templates
        raise BadInput(
            f"{uri!r}: Argo cannot pass this URI between steps. "
            "Choose an output without {{, }}, $( and control characters."
        )
