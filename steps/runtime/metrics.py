"""The metrics of the generate step, and their values in this process.

They are off unless `metrics_server` turns them on: then every call here compares one attribute with
None. What they mean to users is in docs/monitoring.md, which a test compares with `METRICS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    import prometheus_client as prometheus

MetricType = Literal["counter", "gauge", "histogram"]
PREFIX = "imagekiln_"
# From a batch's copy to the CPU, a few milliseconds, to the loading of a large model. Each bucket
# is a series for each stage of each pod: three for a power of ten would double them.
SECONDS_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(slots=True)
class Metric:
    """A metric. `values` are those of its one label that are 0 from the start.

    A counter that first appears with its first event hides that event from rates.
    """

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    per_process: bool = True  # or of the pod, whose several processes do not report it
    type: ClassVar[MetricType]

    @property
    def full_name(self) -> str:
        """The name by which Prometheus knows it."""
        return PREFIX + self.name


@dataclass(slots=True)
class Counter(Metric):
    """A number that only grows."""

    type: ClassVar[MetricType] = "counter"
    series: "prometheus.Counter | None" = field(default=None, repr=False)

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count."""
        if self.series is not None:
            series = self.series.labels(**labels) if labels else self.series
            series.inc(amount)


@dataclass(slots=True)
class Gauge(Metric):
    """A number that goes up and down."""

    type: ClassVar[MetricType] = "gauge"
    series: "prometheus.Gauge | None" = field(default=None, repr=False)

    @property
    def is_on(self) -> bool:
        """Return whether a value would be served: for values that cost something."""
        return self.series is not None

    def set(self, value: float, **labels: str) -> None:
        """Take the value of now."""
        if self.series is not None:
            series = self.series.labels(**labels) if labels else self.series
            series.set(value)

    def add(self, amount: float) -> None:
        """Add to the value; for gauges without labels."""
        if self.series is not None:
            self.series.inc(amount)


@dataclass(slots=True)
class SecondsHistogram(Metric):
    """Observations: their count, their sum, and the count in each bucket."""

    type: ClassVar[MetricType] = "histogram"
    buckets: Sequence[float] = SECONDS_BUCKETS
    series: "prometheus.Histogram | None" = field(default=None, repr=False)

    def observe(self, value: float, **labels: str) -> None:
        """Add an observation."""
        if self.series is not None:
            self.series.labels(**labels).observe(value)


IMAGES = Counter(
    "images_total",
    "Images that the pod made, by status, counted once they are in the store.",
    labels=("status",),
    values=("ok", "blank", "filtered", "failed"),
)
STAGE_SECONDS = SecondsHistogram(
    "stage_seconds",
    "Seconds of one execution of a stage. `text`, `denoise`, `decode` and `copy` are the device's, "
    "of a batch, as is `compile`; `safety` is of a batch too; `encode` and `write` are of a part, "
    "`load` of a process.",
    labels=("stage",),
)
QUEUE_ITEMS = Gauge(
    "queue_items",
    "What waits between two stages: batches in `drawn`, 2 at most for each GPU, and parts in "
    "`encoded`, 1 at most. If both are full, storage is the limit; if only `drawn` is, "
    "encoding.",
    labels=("queue",),
    values=("drawn", "encoded"),
)
DEVICE_BUSY_SECONDS = Counter(
    "device_busy_seconds_total",
    "Seconds in which the device computed, added at the end of each batch. Its rate is the share "
    "of time that the device was busy.",
    labels=("device",),
)
DEVICE_MEMORY_BYTES = Gauge(
    "device_memory_bytes",
    "Memory of the GPU after a batch: `allocated` to tensors, `reserved` by PyTorch, and the "
    "`limit`, all that the GPU or the slice has.",
    labels=("device", "kind"),
)
PARTS = Counter(
    "parts_total",
    "Parts that were `committed`, or were `already_there` when this pod came to write them.",
    labels=("result",),
    values=("committed", "already_there"),
)
STORAGE_RETRIES = Counter(
    "storage_retries_total", "Requests to the object store that were repeated."
)
STORAGE_ERRORS = Counter(
    "storage_errors_total",
    "Operations on storage that failed after all retries.",
    labels=("operation",),
    values=("read", "write", "list", "remove"),
)
OOM_HALVINGS = Counter(
    "oom_halvings_total", "Times that the device's memory ran out and the batch was halved."
)
SHARD_IMAGES_PLANNED = Gauge(
    "shard_images_planned", "Images that the pod is to have made.", per_process=False
)
SHARD_IMAGES_DONE = Gauge(
    "shard_images_done",
    "Images of those that are committed, by earlier attempts or this one.",
    per_process=False,
)
SHARD_INFO = Gauge(
    "shard_info",
    "Always 1. What the pod is working on: `shard` is the `--shard` of its command, `all` on one "
    "machine; `attempt` counts from 0.",
    labels=("run", "job", "shard", "attempt", "model", "profile"),
    per_process=False,
)
METRICS = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, Counter | Gauge | SecondsHistogram)
)


def count_images(statuses: Mapping[str, int]) -> None:
    """Count images that are committed."""
    for status, images in statuses.items():
        IMAGES.add(images, status=status)


def observe_stages(**seconds: float) -> None:
    """Add an observation of each stage that took any time."""
    for stage, duration in seconds.items():
        if duration > 0:
            STAGE_SECONDS.observe(duration, stage=stage)
