"""Section `machine`: the device, its order of attention kernels, transfers, and its limit."""

import os
import platform
from importlib.metadata import version

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody imports it

from tests.bench.gpu.session import Session
from tests.bench.timing import Call, median_seconds

LIBRARIES = ("torch", "diffusers", "transformers")
TRANSFER_BYTES = 2**28
# By the numbers of torch's `SDPBackend`.
ATTENTION_KERNELS = "0 math, 1 flash, 2 efficient, 3 cuDNN"


def measure_machine(session: Session) -> None:
    """What the machine is, what it transfers, and how fast it multiplies matrices."""
    session.report.note(_describe_host())
    if session.on_cuda:
        _describe_device(session)
        _measure_transfers(session)
    session.report.figure("machine.matmul", session.limit / 1e12, "TFLOP/s")


def _describe_host() -> str:
    cores = os.cpu_count()
    load, _, _ = os.getloadavg()
    libraries = [f"{name} {version(name)}" for name in LIBRARIES]
    parts = [
        platform.machine(),
        f"{cores} cores (load {load:.1f})",
        f"Python {platform.python_version()}",
        *libraries,
        f"{torch.get_num_threads()} threads",
    ]
    return ", ".join(parts)


def _describe_device(session: Session) -> None:
    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory / 2**30
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    session.report.note(
        f"{properties.name}, {memory:.1f} GiB, "
        f"{properties.multi_processor_count} multiprocessors, "
        f"CUDA {torch.version.cuda}, cuDNN {cudnn}"
    )
    query = session.placement.random(2, 24, 512, 128)
    F.scaled_dot_product_attention(query, query, query)  # the first call sets the order
    order = torch._C._get_sdp_priority_order()
    session.report.note(
        f"Attention kernels are tried in this order: {order} ({ATTENTION_KERNELS})."
    )


def _measure_transfers(session: Session) -> None:
    host = torch.empty(TRANSFER_BYTES, dtype=torch.uint8)
    pinned = host.pin_memory()
    device = host.to("cuda")
    transfers: dict[str, Call] = {
        "to the device from pageable memory": lambda: device.copy_(host),
        "to the device from pinned memory": lambda: device.copy_(pinned, non_blocking=True),
        "from the device to pinned memory": lambda: pinned.copy_(device, non_blocking=True),
    }
    for direction, transfer in transfers.items():
        transfer()
        rate = TRANSFER_BYTES / median_seconds(transfer) / 1e9
        session.report.figure("machine.transfer", rate, "GB/s", direction=direction)
