"""Serves the metrics of this process, or of the worker processes that it starts, at /metrics.

Where several processes work in one pod, each keeps its values in a file of its own, as
prometheus-client's multiprocess mode does it: the values of a process that was killed stay, and one
endpoint adds up all. Only here is prometheus-client imported, and only if a port is set.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.passes import Stage
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.log_events import ATTEMPT_VARIABLE
from imagekiln.steps.runtime.metrics import (
    METRICS,
    SHARD_IMAGES_DONE,
    SHARD_IMAGES_PLANNED,
    SHARD_INFO,
    Counter,
    Gauge,
    SecondsHistogram,
)
from imagekiln.steps.runtime.progress import Event, Progress, RelayedProgress
from imagekiln.steps.storage.local import temporary_folder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PORT_VARIABLE = "IMAGEKILN_METRICS_PORT"
MAX_PORT = 65535
MAX_REQUESTS = 16  # at a time: each has a thread and a file of this process
REQUEST_SECONDS = 10.0  # of silence
ALL_SHARDS = "all"
# Of prometheus-client: where a process keeps its values in a file.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
# Set in pods: what the workflow knows of them.
PROFILE_VARIABLE = "IMAGEKILN_PROFILE"
AnyMetric = Counter | Gauge | SecondsHistogram
Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]  # as socketserver has it


class CountingProgress(RelayedProgress):
    """Progress that is shown elsewhere, and served as gauges.

    Images that still wait for their passes are not done.
    """

    def __init__(self, shown: Progress, stages: Sequence[Stage]) -> None:
        """Take what shows it, and the stages that are each to be started."""
        super().__init__(shown)
        self._stages = iter(stages)
        self._ends_images = True

    def start(self, total: int) -> None:
        """So many images are planned."""
        self._ends_images = next(self._stages, "whole") != "draw"
        SHARD_IMAGES_PLANNED.set(total)
        SHARD_IMAGES_DONE.set(0)
        super().start(total)

    def add_existing(self, images: int) -> None:
        """So many of them were committed before."""
        self._add(images)
        super().add_existing(images)

    def add_committed(self, images: int) -> None:
        """So many more are committed."""
        self._add(images)
        super().add_committed(images)

    def _add(self, images: int) -> None:
        if self._ends_images:
            SHARD_IMAGES_DONE.add(images)


@contextmanager
def serve_metrics(
    progress: Progress, plan: Plan, shard: str = ALL_SHARDS, stages: Sequence[Stage] | None = None
) -> Iterator[Progress]:
    """Serve the metrics of this process, if a port is set; yields the progress to report to.

    `stages` are those that it does of shards, by default all of the job's.
    A port that is taken is reported, and the work continues without metrics. Raises BadInput where
    the setting is no port.
    """
    port = metrics_port(os.environ)
    if port is None:
        yield progress
        return
    with _serve(port, progress, METRICS, folder=None):
        _set_info(plan, shard)
        yield CountingProgress(progress, stages or plan.job.stages)


@contextmanager
def serve_worker_metrics(
    progress: Progress, plan: Plan, shard: str = ALL_SHARDS, stages: Sequence[Stage] | None = None
) -> Iterator[tuple[Progress, dict[str, str]]]:
    """Likewise for worker processes, which get the variables that come with the progress."""
    port = metrics_port(os.environ)
    if port is None:
        yield progress, {}
        return
    with (
        temporary_folder("imagekiln-metrics-") as folder,
        _serve(port, progress, pod_metrics(), folder),
    ):
        _set_info(plan, shard)
        counted = CountingProgress(progress, stages or plan.job.stages)
        yield counted, {FOLDER_VARIABLE: folder}


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


def pod_metrics() -> list[AnyMetric]:
    """What the process that starts others counts itself."""
    return [metric for metric in METRICS if not metric.per_process]


@contextmanager
def _serve(
    port: int, progress: Progress, own_metrics: Sequence[AnyMetric], folder: str | None
) -> Iterator[None]:
    """Serve the metrics of this process, and those in the folder, where there is one."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    if folder is not None:
        MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    _turn_on(own_metrics, registry)
    with ExitStack() as stack:
        stack.callback(_turn_off, own_metrics)
        try:
            stack.enter_context(_server(port, registry))
        except OSError as error:
            reason = error.strerror or str(error)
            sentence = (
                f"No metrics are served: port {port} cannot be used ({reason}). "
                f"Set {PORT_VARIABLE} to another port, or to 0."
            )
            progress.show_event(Event("metrics", {}, sentence))
        yield


@contextmanager
def _server(port: int, registry: "CollectorRegistry") -> Iterator[None]:
    """Answer requests in a thread while the block runs. Raises OSError where the port is taken."""
    from prometheus_client import make_wsgi_app

    server = make_server(_any_address(), port, make_wsgi_app(registry), _Server, _Request)
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, up to a limit: whoever connects beyond it is sent away.

    That of prometheus-client has no limit, and waits for ever for the rest of a request.
    """

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True

    def __init__(self, *arguments: object) -> None:
        """Listen."""
        super().__init__(*arguments)  # type: ignore[arg-type]  # as WSGIServer has them
        self._places = BoundedSemaphore(MAX_REQUESTS)

    def process_request(self, request: Connection, client_address: object) -> None:
        """Answer in a thread, if one is left."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Connection, client_address: object) -> None:
        """What the thread does."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that went away: no work depends on it."""


class _Request(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, *_: object) -> None:
        """Say nothing."""


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
