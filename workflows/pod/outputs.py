"""The files that a step leaves for Argo: its output parameters, and the report that it shows."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.templates.dag import split_pods

COPYING_THREADS = 8
MAX_LABEL_CHARS = 63
# The files beside the report that it refers to. User text in it has no quotation marks.
LINK_PATTERN = re.compile(r'(?:src|href)="([\w-]+(?:/[\w-]+)*\.\w+)"')
# Argo replaces what stands in double braces, and Kubernetes $(...) in a container's arguments.
VARIABLE_MARKERS = ("{{", "}}", "$(")


def write_plan_outputs(folder: Path, planned: PlanResult, job: Job, workers: int = 1) -> None:
    """Write plan's output parameters, one file each: the run, pod counts and scheduling.

    A pod makes one shard per worker. A run that has finished needs no pods. A canary is the first
    pod, and not one of `pods_here`. Raises BadInput if Argo could not pass on the run's URI.
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
        "exports": str(len(job.export)),  # not the plan's: they may change after it
    }
    write_parameters(folder, parameters)


def write_aggregate_outputs(folder: Path, summary: Summary) -> None:
    """Write aggregate's output parameter: how many images are ok."""
    write_parameters(folder, {"ok": str(summary.ok)})


def leave_report(folder: Path, run: str | None) -> str:
    """Leave the report of a run in `folder` for Argo, and give a sentence on what was done.

    Raises TryAgain if the dataset's store does not answer.
    """
    if run is None:
        return "Nothing was planned, so there is no report."
    store = open_store(run)
    if not store.exists(REPORT_KEY):
        return f"{run}: has no report, since it was not aggregated."

    copy_report(folder, store)
    return f"Argo keeps a copy of {store.uri_of(REPORT_KEY)}."


def copy_report(folder: Path, store: Store) -> None:
    """Copy the report of a run, and the files beside it, to `folder`/report."""
    links = LINK_PATTERN.findall(store.read(REPORT_KEY).decode())
    report_folder = PurePosixPath(REPORT_KEY).parent
    keys = dict.fromkeys([REPORT_KEY, *(f"{report_folder}/{link}" for link in links)])

    def copy(key: str) -> None:
        with suppress(Missing):  # the page is of use without a thumbnail
            content = store.read(key)
            path = folder / key
            with translate_errors(str(path)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    with ThreadPoolExecutor(COPYING_THREADS) as pool:
        list(pool.map(copy, keys))


def write_parameters(folder: Path, parameters: Mapping[str, str]) -> None:
    """Write output parameters, one file each. Raises TryAgain if the disk is full."""
    with translate_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in parameters.items():
            (folder / name).write_text(text, encoding="utf-8")


def _label_value(text: str) -> str:
    """The text as a label of a pod, which is shorter, and ends with a letter or digit."""
    return text[:MAX_LABEL_CHARS].rstrip("._-")


def _require_safe_uri(uri: str) -> None:
    has_marker = any(marker in uri for marker in VARIABLE_MARKERS)
    if has_marker or not uri.isprintable():  # control characters break Argo's templates
        raise BadInput(
            f"{uri!r}: Argo cannot pass this URI between steps. "
            "Choose an output without {{, }}, $( and control characters."
        )
