"""What DCGM exporter serves of GPUs that this machine does not have.

Names are those of its default-counters.csv, 4.8, with a counter that is commented out there; labels
are those of its template, with the pod that has the GPU.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, and the pod that has it."""

    number: int
    pod: str = ""
    utilization: float = 0
    temperature: float = 35
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
            labels |= {"container": "main", "namespace": "imagekiln", "pod": self.pod}
        return labels


def dcgm_metrics(gpus: Iterable[Gpu]) -> str:
    """The metrics of the GPUs, as Prometheus reads them."""
    lines: list[str] = []
    metrics: tuple[tuple[str, str, Callable[[Gpu], float]], ...] = (
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", lambda gpu: gpu.utilization),
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", lambda gpu: gpu.temperature),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge", lambda gpu: gpu.xid),
        ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", lambda gpu: gpu.throttled),
    )
    for name, kind, value in metrics:
        lines.append(f"# TYPE {name} {kind}")
        for gpu in gpus:
            labels = ",".join(f'{key}="{label}"' for key, label in gpu.labels().items())
            lines.append(f"{name}{{{labels}}} {value(gpu):.12g}")
    return "\n".join(lines) + "\n"
