"""The files that a step leaves for Argo: its output parameters, and the report of aggregate."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath

from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import ClusterSettings
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import REPORT_KEY, SUCCESS_KEY
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.storage import open_store
from imagekiln.workflows.templates.child_workflows import MAX_PODS

COPYING_THREADS = 8
# The files beside the report that it refers to. User text in it has no quotation marks.
LINK_PATTERN = re.compile(r'(?:src|srcset|href)="([\w-]+(?:/[\w-]+)*\.\w+)"')
# Argo replaces what stands in double braces, and Kubernetes $(...) in a container's arguments.
VARIABLE_MARKERS = ("{{", "}}", "$(")


def write_plan_outputs(
    folder: Path, planned: PlanResult, cluster: ClusterSettings, workers: int = 1
) -> None:
    """Write plan's output parameters, one file each: the run, pod counts and scheduling.

    A pod makes one shard per worker. A run that has finished needs no pods. A canary is the first
    pod, and not one of `pods_here`. Raises BadInput where Argo could not pass on the run's URI.
    """
    _require_safe_uri(planned.uri)
    pods = ceil(len(planned.plan.shards) / workers)
    if open_store(planned.uri).exists(SUCCESS_KEY):
        pods = 0
    has_canary = cluster.canary is not None and planned.plan.round == 0
    canary_pods = min(1, pods) if has_canary else 0
    pods_here = pods - canary_pods
    child_workflows = 0
    if pods > MAX_PODS:
        pods_here = 0
        child_workflows = ceil(pods / MAX_PODS)

    parameters = {
        "run": planned.uri,
        "pods": str(pods),
        "canary": str(canary_pods),
        "pods_here": str(pods_here),
        "workflows": str(child_workflows),
        "parallelism": str(cluster.parallelism),
        "priority": str(cluster.priority),
        "priority_class": cluster.priority_class or "",
        "images": str(planned.plan.counts.images),
    }
    _write_parameters(folder, parameters)


def write_aggregate_outputs(folder: Path, summary: Summary) -> None:
    """Write aggregate's output parameter: how many images are ok."""
    _write_parameters(folder, {"ok": str(summary.ok)})


def copy_report(folder: Path, uri: str) -> None:
    """Copy the report of a run, or of a round's run, and the files beside it to `folder`/report.

    Where there is no report, do nothing.
    """
    run, *_ = resolve_run(uri)
    store = open_store(run)
    if not store.exists(REPORT_KEY):
        return
    links = LINK_PATTERN.findall(store.read(REPORT_KEY).decode())
    report_folder = PurePosixPath(REPORT_KEY).parent
    keys = dict.fromkeys([REPORT_KEY, *(f"{report_folder}/{link}" for link in links)])

    def copy(key: str) -> None:
        with suppress(Missing):  # the page is of use without a thumbnail
            content = store.read(key)
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    with ThreadPoolExecutor(COPYING_THREADS) as pool:
        list(pool.map(copy, keys))


def _write_parameters(folder: Path, parameters: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in parameters.items():
        (folder / name).write_text(text, encoding="utf-8")


def _require_safe_uri(uri: str) -> None:
    has_marker = any(marker in uri for marker in VARIABLE_MARKERS)
    if has_marker or not uri.isprintable():  # control characters break Argo's templates
        raise BadInput(
            f"{uri!r}: Argo cannot pass this URI between steps. "
            "Choose an output without {{, }}, $( and control characters."
        )
