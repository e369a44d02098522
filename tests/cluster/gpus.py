"""What DCGM exporter serves of GPUs that this machine does not have.

Names are those of its default-counters.csv, 4.8, with a counter that is commented out there; labels
are those of its template, with the pod that has the GPU.
"""

from collections.abc import Sequence
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


def dcgm_metrics(gpus: Sequence[Gpu]) -> str:
    """The metrics of the GPUs, as Prometheus reads them."""
    lines: list[str] = []
    for name, kind, field in (
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", "utilization"),
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "temperature"),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge", "xid"),
        ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "throttled"),
    ):
        lines.append(f"# TYPE {name} {kind}")
        for gpu in gpus:
            labels = ",".join(f'{key}="{label}"' for key, label in gpu.labels().items())
            lines.append(f"{name}{{{labels}}} {getattr(gpu, field):.12g}")
    return "\n".join(lines) + "\n"
