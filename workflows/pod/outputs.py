"""What the steps leave in a folder for Argo to pick up: a few short texts, and the report."""

from itertools import count, takewhile
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ClusterSettings
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import PLOT_NAMES, REPORT_KEY, SUCCESS_KEY, plot_key, thumbnail_key
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.storage import open_store
from imagekiln.workflows.templates.child_workflows import MAX_PODS


def write_plan_outputs(
    folder: Path, planned: PlanResult, cluster: ClusterSettings, workers: int = 1
) -> None:
    """Write run, counts and what further workflows take from the job, a file each; a pod makes a shard a worker.

    A run that is finished already needs no pods. Raises BadInput where Argo could not carry the run's name.
    """
    _require_safe_uri(planned.uri)
    finished = open_store(planned.uri).exists(SUCCESS_KEY)
    pods = 0 if finished else -(-len(planned.plan.shards) // workers)
    here = pods <= MAX_PODS
    texts = {
        "run": planned.uri,
        "pods": str(pods),
        "pods_here": str(pods if here else 0),
        "workflows": str(0 if here else -(-pods // MAX_PODS)),
        "parallelism": str(cluster.parallelism),
        "priority": str(cluster.priority),
        "priority_class": cluster.priority_class or "",
        "images": str(planned.plan.counts.images),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def copy_report(folder: Path, uri: str) -> None:
    """Copy the report of a run, also of a round's, with its pictures into `folder`/report. Without one, do nothing."""
    store = open_store(resolve_run(uri)[0])
    plots = [plot_key(name, dark=dark) for name in PLOT_NAMES for dark in (False, True)]
    thumbnails = takewhile(store.exists, map(thumbnail_key, count()))
    for name in [*filter(store.exists, [REPORT_KEY, *plots]), *thumbnails]:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(store.read(name))


def _require_safe_uri(uri: str) -> None:
    # Argo would take double braces for a variable of its own, and Kubernetes $(...) for one of the container's; signs
    # that do not print break Argo's templates.
    if any(sign in uri for sign in ("{{", "}}", "$(")) or not uri.isprintable():
        raise BadInput(
            f"{uri!r}: no workflow can carry this name. Choose an output without {{{{, }}}} and $(."
        )
