"""Metrics of the generate step, and their values in this process.

Metrics are off unless `metrics_server` turns them on. While off, each call only compares an
attribute with None. docs/monitoring.md explains them to users, and a test compares it with
`METRICS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PREFIX = "imagekiln_"
# From a batch's copy to the CPU, a few milliseconds, to the loading of a large model. Each bucket
# is a series for each stage of each pod, and three per power of ten would double them.
SECONDS_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


TYPE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "gauge": {"multiprocess_mode": "livesum"},
    "histogram": {"buckets": SECONDS_BUCKETS},
}


@dataclass(slots=True)
class Metric:
    """A metric, recorded by prometheus-client while it is on.

    `values` are values of its only label that start at 0. A counter that first appears with its
    first event hides that event from rates.
    """

    type: Literal["counter", "gauge", "histogram"]
    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    per_process: bool = True  # false for metrics of the pod, reported once for all its processes
    series: Any = field(default=None, repr=False)

    @property
    def full_name(self) -> str:
        """Full name in Prometheus."""
        return PREFIX + self.name

    def turn_on(self, registry: "CollectorRegistry") -> None:
        """Record values in this registry from now on."""
        import prometheus_client as prometheus

        metric_class: Any = getattr(prometheus, self.type.title())
        options = TYPE_OPTIONS.get(self.type, {})
        description = (self.full_name, self.meaning, self.labels)
        self.series = metric_class(*description, registry=registry, **options)
        for value in self.values:
            self.series.labels(value)

    def add(self, amount: float = 1, **labels: str) -> None:
        """Add to a counter or a gauge."""
        if self.series is not None:
            self._with_labels(labels).inc(amount)

    def set(self, value: float, **labels: str) -> None:
        """Set a gauge."""
        if self.series is not None:
            self._with_labels(labels).set(value)

    def observe(self, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        if self.series is not None:
            self._with_labels(labels).observe(value)

    def _with_labels(self, labels: Mapping[str, str]) -> Any:  # noqa: ANN401  # of three classes
        return self.series.labels(**labels) if labels else self.series


IMAGES = Metric(
    "counter",
    "images_total",
    "Images that the pod made, by status, counted once they are in the store.",
    labels=("status",),
    values=("ok", "blank", "filtered", "failed"),
)
STAGE_SECONDS = Metric(
    "histogram",
    "stage_seconds",
    "Seconds of one execution of a stage. `text`, `denoise`, `decode` and `copy` are the device's, "
    "of a batch, as is `compile`; `safety` is of a batch too; `encode` and `write` are of a part, "
    "`load` of a process.",
    labels=("stage",),
)
QUEUE_ITEMS = Metric(
    "gauge",
    "queue_items",
    "What waits between two stages: batches in `drawn`, 2 at most for each GPU, and parts in "
    "`encoded`, 1 at most. If both are full, storage is the limit; if only `drawn` is, "
    "encoding.",
    labels=("queue",),
    values=("drawn", "encoded"),
)
DEVICE_BUSY_SECONDS = Metric(
    "counter",
    "device_busy_seconds_total",
    "Seconds in which the device computed, added at the end of each batch. Its rate is the share "
    "of time that the device was busy.",
    labels=("device",),
)
DEVICE_MEMORY_BYTES = Metric(
    "gauge",
    "device_memory_bytes",
    "Memory of the GPU after a batch: `allocated` to tensors, `reserved` by PyTorch, and the "
    "`limit`, all that the GPU or the slice has.",
    labels=("device", "kind"),
)
PARTS = Metric(
    "counter",
    "parts_total",
    "Parts that were `committed`, or were `already_there` when this pod came to write them.",
    labels=("result",),
    values=("committed", "already_there"),
)
STORAGE_RETRIES = Metric(
    "counter", "storage_retries_total", "Requests to the object store that were repeated."
)
STORAGE_ERRORS = Metric(
    "counter",
    "storage_errors_total",
    "Operations on storage that failed after all retries.",
    labels=("operation",),
    values=("read", "write", "list", "remove"),
)
OOM_HALVINGS = Metric(
    "counter",
    "oom_halvings_total",
    "Times that the device's memory ran out and the batch was halved.",
)
SHARD_IMAGES_PLANNED = Metric(
    "gauge", "shard_images_planned", "Images that the pod is to have made.", per_process=False
)
SHARD_IMAGES_DONE = Metric(
    "gauge",
    "shard_images_done",
    "Images of those that are committed, by earlier attempts or this one.",
    per_process=False,
)
SHARD_INFO = Metric(
    "gauge",
    "shard_info",
    "Always 1. What the pod is working on: `shard` is the `--shard` of its command, `all` on one "
    "machine; `attempt` counts from 0.",
    labels=("run", "job", "shard", "attempt", "model", "profile"),
    per_process=False,
)
METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def count_images(statuses: Mapping[str, int]) -> None:
    """Count committed images by status."""
    for status, images in statuses.items():
        IMAGES.add(images, status=status)


def observe_stages(**seconds: float) -> None:
    """Observe the duration of each stage that took any time."""
    for stage, duration in seconds.items():
        if duration > 0:
            STAGE_SECONDS.observe(duration, stage=stage)
