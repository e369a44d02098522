"""Serve the metrics of this process, or of its worker processes, at /metrics.

The worker processes of a pod keep their values in files, in prometheus-client's multiprocess mode,
so the counts of a killed process stay. prometheus-client is imported only if a port is set.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.machine import ATTEMPT_VARIABLE
from imagekiln.steps.runtime.metrics import (
    METRICS,
    SHARD_INFO,
)
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.storage.local import temporary_folder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PORT_VARIABLE = "IMAGEKILN_METRICS_PORT"
MAX_PORT = 65535
ALL_SHARDS = "all"
# prometheus-client's variable for the folder of a process's values.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# The workflow sets these in its pods.
PROFILE_VARIABLE = "IMAGEKILN_PROFILE"


@contextmanager
def serve_metrics(
    progress: Progress, plan: Plan, shard: str = ALL_SHARDS, *, in_workers: bool = False
) -> Iterator[Mapping[str, str]]:
    """Serve the metrics of this process, or of its workers, if a port is set.

    Yields the environment variables that workers need. Raises BadInput if the setting is not a
    port. A port in use is only reported.
    """
    port = metrics_port(os.environ)
    if port is None:
        yield {}
        return
    from prometheus_client import CollectorRegistry, disable_created_metrics
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    own_metrics = [metric for metric in METRICS if not (in_workers and metric.per_process)]
    variables = {}
    with ExitStack() as stack:
        if in_workers:
            folder = stack.enter_context(temporary_folder("imagekiln-metrics-"))
            MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
            variables[FOLDER_VARIABLE] = folder
        # The `_created` series would add a third to the series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        for metric in own_metrics:
            metric.turn_on(registry)
            stack.callback(setattr, metric, "series", None)
        _start_server(port, registry, progress, stack)
        _set_info(plan, shard)
        yield variables


def count_in_worker() -> None:
    """Keep a worker process's values in the folder of the process that serves them, if any."""
    if not os.environ.get(FOLDER_VARIABLE) or metrics_port(os.environ) is None:
        return
    from prometheus_client import CollectorRegistry, disable_created_metrics

    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for metric in METRICS:
        if metric.per_process:
            metric.turn_on(registry)


def metrics_port(environment: Mapping[str, str]) -> int | None:
    """Return the port to serve metrics on; None if they are off. Raises BadInput."""
    text = environment.get(PORT_VARIABLE, "").strip() or "0"
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise BadInput(
            f"{PORT_VARIABLE} is {text!r}, which is no port. Set a number from 1 to {MAX_PORT}, "
            "or 0 for no metrics."
        )
    return int(text) or None


def _start_server(
    port: int, registry: "CollectorRegistry", progress: Progress, stack: ExitStack
) -> None:
    from prometheus_client import start_http_server

    try:
        # A cluster's pods may have IPv6 alone.
        address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104  # scraped from elsewhere
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        reason = error.strerror or str(error)
        sentence = (
            f"No metrics are served: port {port} cannot be used ({reason}). "
            f"Set {PORT_VARIABLE} to another port, or to 0."
        )
        progress.show_event("metrics", sentence)
        return
    for end in (thread.join, server.server_close, server.shutdown):  # called in reverse
        stack.callback(end)


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
