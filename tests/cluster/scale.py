"""Many shards with a stub as the GPU image: the size of a workflow, the controller's memory."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status, watch
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template

MIB = 2**20
# More than what fits at once waits in Argo, not as pods that no node has room for.
AT_ONCE = 40
PROFILE = """\
like: test
description: A pod that does nothing
generate:
  image: localhost/imagekiln-stub:dev
  cpu: 0.01
  memory: 0.03
  most_memory: 0.03
  shared_memory: 0.001
gpu: {resource: example.com/stub, device: cpu}
"""


@pytest.mark.parametrize("shards", [int(each) for each in os.environ.get("SHARDS", "500").split()])
def test_workflow_fits_in_its_object(shards: int, tmp_path: Path, argo: ArgoApi) -> None:
    (tmp_path / "stub.yaml").write_text(PROFILE)
    texts = [jobs.TEXTS[place % len(jobs.TEXTS)] for place in range(shards)]
    job = jobs.job(
        prompts=jobs.prompts({"prompt": [*texts], "seed": list(range(shards))}),
        shard={"images": 1},
        part={"images": 1},
        batch={"images": 1},
        cluster={
            "namespace": kube.NAMESPACE,
            "profile": str(tmp_path / "stub.yaml"),
            "parallelism": AT_ONCE,
        },
    )
    with _advertised():
        start = time.monotonic()
        peak_memory = 0
        name = submit_with_template(job, argo)
        for _ in watch(name, kube.NAMESPACE, argo, every=5):
            peak_memory = max(peak_memory, _controller_memory())
    status = get_status(name, kube.NAMESPACE, argo)
    stored = kube.get("workflow", name)
    size = len(json.dumps(stored, separators=(",", ":")).encode())
    packed = kube.get_field(stored, "status", "compressedNodes")
    print(  # noqa: T201  # what the run is for
        f"\n{shards} shards: {time.monotonic() - start:.0f} s; workflow {size / MIB:.2f} MiB"
        f"{', its nodes packed' if packed else ''}; controller at most {peak_memory} MiB"
    )
    assert status.pods.done == shards, status.failures[:3]
    assert size < MIB


@contextmanager
def _advertised() -> Iterator[None]:
    nodes = [kube.name(each) for each in kube.items("nodes") if "gpu" in kube.name(each)]
    for count in (str(AT_ONCE), None):
        for node in nodes:
            amounts = {"example.com/stub": count}
            change = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
            kube.kubectl(
                "patch",
                "node",
                node,
                "--subresource",
                "status",
                "--type",
                "merge",
                "--patch",
                change,
            )
        if count:
            yield


def _controller_memory() -> int:
    """The memory of a controller on this machine in MiB; 0 where none runs here."""
    pids = subprocess.run(
        ["pgrep", "-x", "workflow-contro"], capture_output=True, text=True, check=False
    ).stdout.split()
    if not pids:
        return 0
    status = Path(f"/proc/{pids[0]}/status").read_text()
    return (
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        // 1024
    )
