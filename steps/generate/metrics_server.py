"""Serves the metrics of this process, or of the worker processes that it starts, at /metrics.

Where several processes work in one pod, each keeps its values in a file of its own, as
prometheus-client's multiprocess mode does it: the values of a process that was killed stay, and one
endpoint adds up all. Only here is prometheus-client imported, and only if a port is set.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.machine import ATTEMPT_VARIABLE
from imagekiln.steps.runtime.metrics import (
    METRICS,
    SHARD_INFO,
    Counter,
    Gauge,
    SecondsHistogram,
)
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.storage.local import temporary_folder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PORT_VARIABLE = "IMAGEKILN_METRICS_PORT"
MAX_PORT = 65535
ALL_SHARDS = "all"
# Of prometheus-client: where a process keeps its values in a file.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# Set in pods: what the workflow knows of them.
PROFILE_VARIABLE = "IMAGEKILN_PROFILE"
AnyMetric = Counter | Gauge | SecondsHistogram


@contextmanager
def serve_metrics(
    progress: Progress, plan: Plan, shard: str = ALL_SHARDS, *, in_workers: bool = False
) -> Iterator[Mapping[str, str]]:
    """Serve the metrics of this process, or of its workers, if a port is set.

    Yields the variables that workers need. A port that is taken is reported, and the work continues
    without metrics. Raises BadInput if the setting is no port.
    """
    port = metrics_port(os.environ)
    if port is None:
        yield {}
        return
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    own_metrics = [metric for metric in METRICS if not (in_workers and metric.per_process)]
    variables = {}
    with ExitStack() as stack:
        if in_workers:
            folder = stack.enter_context(temporary_folder("imagekiln-metrics-"))
            MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
            variables[FOLDER_VARIABLE] = folder
        _turn_on(own_metrics, registry)
        stack.callback(_turn_off, own_metrics)
        _start_server(port, registry, progress, stack)
        _set_info(plan, shard)
        yield variables


def count_in_worker() -> None:
    """In a worker process: keep values in the folder of the process that serves them, if any."""
    if not os.environ.get(FOLDER_VARIABLE) or metrics_port(os.environ) is None:
        return
    from prometheus_client import CollectorRegistry

    _turn_on([metric for metric in METRICS if metric.per_process], CollectorRegistry())


def forget_worker(environment: Mapping[str, str], process: int) -> None:
    """A worker has ended: its gauges, such as the memory that it used, are no more."""
    folder = environment.get(FOLDER_VARIABLE)
    if folder is not None:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process, folder)  # type: ignore[no-untyped-call]


def metrics_port(environment: Mapping[str, str]) -> int | None:
    """The port to serve metrics on; None where they are off. Raises BadInput."""
    text = environment.get(PORT_VARIABLE, "").strip()
    if text in ("", "0"):
        return None
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise BadInput(
            f"{PORT_VARIABLE} is {text!r}, which is no port. Set a number from 1 to {MAX_PORT}, "
            "or 0 for no metrics."
        )
    return int(text)


def _start_server(
    port: int, registry: "CollectorRegistry", progress: Progress, stack: ExitStack
) -> None:
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, _any_address(), registry)
    except OSError as error:
        reason = error.strerror or str(error)
        sentence = (
            f"No metrics are served: port {port} cannot be used ({reason}). "
            f"Set {PORT_VARIABLE} to another port, or to 0."
        )
        progress.show_event(Event("metrics", {}, sentence))
        return
    for end in (thread.join, server.server_close, server.shutdown):  # the last one first
        stack.callback(end)


def _any_address() -> str:
    """All addresses of this machine: a cluster's pods may have IPv6 alone."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104  # scraped from elsewhere


def _set_info(plan: Plan, shard: str) -> None:
    SHARD_INFO.set(
        1,
        run=plan.run_id,
        job=plan.job.name,
        shard=shard,
        attempt=os.environ.get(ATTEMPT_VARIABLE, "0"),
        model=plan.job.model.id,
        profile=os.environ.get(PROFILE_VARIABLE, ""),
    )


def _turn_on(metrics: Sequence[AnyMetric], registry: "CollectorRegistry") -> None:
    import prometheus_client as prometheus

    # They would be a third more series, which nobody asks for.
    prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
    for metric in metrics:
        description = (metric.full_name, metric.meaning, metric.labels)
        if isinstance(metric, Counter):
            metric.series = prometheus.Counter(*description, registry=registry)
        elif isinstance(metric, Gauge):
            metric.series = prometheus.Gauge(
                *description, registry=registry, multiprocess_mode="livesum"
            )
        else:
            metric.series = prometheus.Histogram(
                *description, registry=registry, buckets=metric.buckets
            )
        for value in metric.values:
            metric.series.labels(value)


def _turn_off(metrics: Sequence[AnyMetric]) -> None:
    for metric in metrics:
        metric.series = None
