"""Files that a step writes for Argo: its output parameters, the report, and metrics.

`aggregate` writes its counts as one parameter, `figures`. From it, the exit handler's pod computes
a value for every metric (`workflows/templates/metrics.py`), even if it is missing.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.runs.run import open_run, split_address
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.client.pods import parse_figures
from imagekiln.workflows.objects import get_texts
from imagekiln.workflows.templates.dag import split_pods
from imagekiln.workflows.templates.metrics import (
    COST,
    GPU_USES,
    IMAGE_STATUSES,
    JOB_OUTPUT,
    SPENT_FIGURES,
    UNKNOWN_JOB,
)
from imagekiln.workflows.templates.workflow import JOB_LABEL

COPYING_THREADS = 8
MAX_LABEL_CHARS = 63
# Argo replaces double braces, and Kubernetes replaces $(...) in a container's arguments.
VARIABLE_MARKERS = ("{{", "}}", "$(")
MISSING = "missing"
DECIMALS = 3


def write_plan_outputs(folder: Path, planned: PlanResult, job: Job, workers: int = 1) -> None:
    """Write plan's output parameters, one file each: the run, pod counts and scheduling.

    A pod generates one shard per worker. A finished run needs no pods. A canary is the first pod
    and is not included in `pods_here`. Raises BadInput if Argo could not pass on the run's URI.
    """
    _require_safe_uri(planned.uri)
    is_retry = planned.plan.retry > 0
    is_finished = not is_retry and open_run(planned.uri).is_finished
    shards = 0 if is_finished else len(planned.plan.shards)
    counts = split_pods(shards, workers)
    has_canary = job.cluster.canary is not None and not is_retry
    canary_pods = min(1, counts.pods) if has_canary else 0

    parameters = {
        "run": planned.uri,
        "pods": str(counts.pods),
        "canary": str(canary_pods),
        "pods_here": str(max(0, counts.pods_here - canary_pods)),
        "workflows": str(counts.child_workflows),
        "parallelism": str(job.cluster.parallelism),
        "priority_class": job.cluster.priority_class or "",
        "job_name": planned.plan.job.name,
        "run_id": _label_value(planned.plan.run_id),
        "images": str(planned.plan.counts.images),
        "exports": str(len(job.export)),  # from the job: the plan's may be outdated
    }
    write_parameters(folder, parameters)


def leave_report(folder: Path, run: str | None) -> str:
    """Copy the report of a run to `folder`/report for Argo, and return a sentence about it.

    Raises TryAgain if the dataset's store does not respond.
    """
    if run is None:
        return "Nothing was planned, so there is no report."
    store = open_store(run)
    if not store.exists(REPORT_KEY):
        return f"{run}: has no report, since it was not aggregated."

    def copy(key: str) -> None:
        path = folder / key
        content = store.read(key)
        with translate_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    with ThreadPoolExecutor(COPYING_THREADS) as pool:
        list(pool.map(copy, _list_files(store, str(PurePosixPath(REPORT_KEY).parent))))
    return f"Argo keeps a copy of {store.uri_of(REPORT_KEY)}."


def _list_files(store: Store, folder: str) -> Iterator[str]:
    for entry in store.list_folder(folder):
        if entry.is_folder:
            yield from _list_files(store, entry.key)
        else:
            yield entry.key


def write_parameters(folder: Path, parameters: Mapping[str, str]) -> None:
    """Write output parameters, one file each. Raises TryAgain if the disk is full."""
    with translate_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in parameters.items():
            (folder / name).write_text(text, encoding="utf-8")


def _label_value(value: str) -> str:
    """Convert a string to a pod label, which is shorter, and ends with a letter or digit."""
    return value[:MAX_LABEL_CHARS].rstrip("._-")


def _require_safe_uri(uri: str) -> None:
    has_marker = any(marker in uri for marker in VARIABLE_MARKERS)
    if has_marker or not uri.isprintable():  # control characters break Argo's templates
        raise BadInput(
            f"{uri!r}: Argo cannot pass this URI between steps. "
            "Choose an output without {{, }}, $( and control characters."
        )


@dataclass(frozen=True, slots=True)
class EndedWorkflow:
    """Facts of an ended workflow, as strings from the exit handler's template.

    `workflow` is NAMESPACE/NAME. An output that no step has set is Argo's own variable.
    """

    workflow: str = ""
    status: str = ""
    job: str = ""
    images: str = ""
    figures: str = ""
    labels: str = ""
    created_at: str = ""
    report_node: str = ""


def read_spending(run: str) -> dict[str, float] | None:
    """Read GPU seconds by use, and the total cost, from the run's last aggregation.

    Zeros before the first one; None if unknown.
    """
    with suppress(KilnError):
        summary = _find_summary(run)
        return dict.fromkeys(SPENT_FIGURES, 0.0) if summary is None else _spending_of(summary)
    return None


def write_figures(
    folder: Path, run: str, before: Mapping[str, float] | None, *, is_counted: bool
) -> None:
    """Write what one aggregation adds to the metrics of its job; nothing without a summary.

    Images are counted if this aggregation counted them. GPU time and cost are counters, and a
    summary has the totals of all attempts. They therefore grow by the difference to `before`.
    """
    with suppress(KilnError):  # the result of the aggregation matters more
        summary = _find_summary(run)
        if summary is None:
            return
        counted = IMAGE_STATUSES if is_counted else ()
        figures: dict[str, float] = {status: summary.statuses.get(status, 0) for status in counted}
        if before is not None:
            spent = _spending_of(summary)
            figures |= {
                name: round(max(0.0, spent[name] - before[name]), DECIMALS) for name in spent
            }
        write_parameters(folder, {"figures": json.dumps(figures)})


def _find_summary(run: str) -> Summary | None:
    """Find the summary of a run, or of the run that a retry belongs to; None if there is none."""
    with suppress(Missing):
        root, _ = split_address(run)
        return load_summary(open_store(root))
    return None


def _spending_of(summary: Summary) -> dict[str, float]:
    gpu_seconds = summary.spending.gpu_seconds
    by_use = {use: getattr(gpu_seconds, use) for use in GPU_USES}
    return {**by_use, COST: summary.cost or 0.0}


def run_metric_values(ended: EndedWorkflow, now: float) -> dict[str, str]:
    """Return the value of every metric of an ended run, by output parameter.

    In a run that was not aggregated, all images count as missing.
    """
    created_at = float(set_value(ended.created_at) or now)
    values = {
        "seconds": max(0.0, now - created_at),
        "ended_at": now,
        **dict.fromkeys((*IMAGE_STATUSES, *SPENT_FIGURES), 0.0),
        MISSING: float(set_value(ended.images) or 0),
        **parse_figures(ended.figures),
    }
    texts = {name: f"{value:.15g}" for name, value in values.items()}
    return {JOB_OUTPUT: _job_name(ended), **texts}


def _job_name(ended: EndedWorkflow) -> str:
    """Return the job's name from its plan, or else from the label of the workflow."""
    name = set_value(ended.job)
    if name and name != UNKNOWN_JOB:
        return name
    labels = json.loads(set_value(ended.labels) or "{}")
    return get_texts(labels).get(JOB_LABEL) or UNKNOWN_JOB


def set_value(output: str) -> str:
    """Return the value of an output; empty if it is unset and still has Argo's variable."""
    return "" if output.startswith("{{") else output
