"""What Argo's controller and DCGM exporter serve, in their names and labels, with values of ours.

Argo's are those of 4.1.2 (util/telemetry/metrics_list.go), all with its exporter's prefix, and ours
of a run. DCGM exporter's are those of its default-counters.csv, 4.8, with a counter that is
commented out there; its labels are those of its template, with the pod that has the GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

NAMESPACE = "imagekiln"
SHARD_BUCKETS = (60.0, 300.0, 900.0, 1800.0, 3600.0)


@dataclass(slots=True)
class Exposition:
    """Metrics as Prometheus reads them."""

    lines: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str, *samples: tuple[Mapping[str, str], float]) -> None:
        """Add the samples of a metric."""
        self.lines.append(f"# TYPE {name} {kind}")
        for labels, value in samples:
            self.lines.append(f"{name}{_to_text(labels)} {value:.12g}")

    def add_histogram(
        self, name: str, labels: Mapping[str, str], buckets: Mapping[float, float], total: float
    ) -> None:
        """Add a histogram, with how many were observed up to each bound."""
        self.lines.append(f"# TYPE {name} histogram")
        count = max(buckets.values())
        bounds = {f"{bound:g}": number for bound, number in buckets.items()} | {"+Inf": count}
        for bound, number in bounds.items():
            self.lines.append(f"{name}_bucket{_to_text({**labels, 'le': bound})} {number:.12g}")
        self.lines.append(f"{name}_sum{_to_text(labels)} {total:.12g}")
        self.lines.append(f"{name}_count{_to_text(labels)} {count:.12g}")

    def __str__(self) -> str:
        """The text of a scrape."""
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True, slots=True)
class Night:
    """What a job's runs have come to: counters, of all runs; and the latest run."""

    job: str
    started: int
    succeeded: int
    failed: int
    last_success: float
    planned: int
    images: Mapping[str, float]
    gpu_seconds: Mapping[str, float]
    cost: float
    duration: float
    shards: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, and the pod that has it."""

    number: int
    pod: str = ""
    utilization: float = 0
    memory_mib: float = 0
    temperature: float = 35
    power: float = 70
    energy: float = 0
    xid: int = 0
    throttled: float = 0
    node: str = "node-1"

    def labels(self) -> dict[str, str]:
        """Its labels, as the exporter writes them."""
        labels = {
            "gpu": str(self.number),
            "UUID": f"GPU-{self.node}-{self.number}",
            "pci_bus_id": f"00000000:{self.number:02X}:00.0",
            "device": f"nvidia{self.number}",
            "modelName": "NVIDIA H100 80GB HBM3",
            "hostname": self.node,
            "DCGM_FI_DRIVER_VERSION": "580.95.05",
        }
        if self.pod:
            labels |= {"container": "main", "namespace": NAMESPACE, "pod": self.pod}
        return labels


def argo_metrics(nights: list[Night], pods: Mapping[str, int], refused: float = 0) -> str:
    """What Argo's controller serves: `pods` by phase, and how many pods a quota refused."""
    text = Exposition()
    running = sum(night.started - night.succeeded - night.failed for night in nights)
    text.add("gauge", "argo_workflows_gauge", ({"phase": "Running"}, running))
    phases = [({"phase": phase}, float(count)) for phase, count in pods.items()]
    text.add("gauge", "argo_workflows_pods_gauge", *phases)
    request = {"kind": "pods", "verb": "Create", "status_code": "403"}
    text.add("counter", "argo_workflows_k8s_request_total", (request, refused))
    starts = [
        ({"name": f"imagekiln-{night.job}", "namespace": NAMESPACE}, float(night.started))
        for night in nights
    ]
    text.add("counter", "argo_workflows_cronworkflows_triggered_total", *starts)
    for name, kind, samples in _run_metrics(nights):
        text.add(kind, f"argo_workflows_imagekiln_{name}", *samples)
    for night in nights:
        buckets = {bound: night.shards * bound / SHARD_BUCKETS[-1] for bound in SHARD_BUCKETS}
        text.add_histogram(
            "argo_workflows_imagekiln_shard_seconds",
            {"job": night.job, "status": "Succeeded"},
            buckets,
            night.shards * 1500,
        )
    return str(text)


Sample = tuple[dict[str, str], float]


def _run_metrics(nights: list[Night]) -> Iterator[tuple[str, str, list[Sample]]]:
    ended = [night for night in nights if night.succeeded + night.failed]
    runs: list[Sample] = []
    for night in nights:
        for status, count in (("Succeeded", night.succeeded), ("Failed", night.failed)):
            if count:  # Argo's counters begin with the first event
                runs.append(({"job": night.job, "status": status}, float(count)))
    yield "runs_total", "counter", runs
    successes = [({"job": night.job}, night.last_success) for night in nights if night.last_success]
    yield "run_last_success_timestamp_seconds", "gauge", successes
    plans = [({"job": night.job}, float(night.planned)) for night in nights]
    yield "run_images_planned", "gauge", plans
    yield "run_duration_seconds", "gauge", [({"job": n.job}, n.duration) for n in ended]
    yield "run_cost_total", "counter", [({"job": n.job}, n.cost) for n in ended]
    images = [
        ({"job": n.job, "status": status}, count)
        for n in ended
        for status, count in n.images.items()
    ]
    yield "run_images", "gauge", images
    seconds = [
        ({"job": n.job, "use": use}, amount) for n in ended for use, amount in n.gpu_seconds.items()
    ]
    yield "run_gpu_seconds_total", "counter", seconds


def dcgm_metrics(gpus: list[Gpu]) -> str:
    """What DCGM exporter serves."""
    text = Exposition()
    for name, kind, values in (
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", [gpu.utilization for gpu in gpus]),
        ("DCGM_FI_DEV_FB_USED", "gauge", [gpu.memory_mib for gpu in gpus]),
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", [gpu.temperature for gpu in gpus]),
        ("DCGM_FI_DEV_POWER_USAGE", "gauge", [gpu.power for gpu in gpus]),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", [gpu.energy for gpu in gpus]),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge", [float(gpu.xid) for gpu in gpus]),
        ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", [gpu.throttled for gpu in gpus]),
    ):
        samples = [(gpu.labels(), value) for gpu, value in zip(gpus, values, strict=True)]
        text.add(kind, name, *samples)
    return str(text)


def _to_text(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""
