"""Model files in a volume that all pods share, as the profile for most clusters has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.test_profiles import job_with_profile
from tests.cluster.waiting import submit_with_template, wait_for_success

CLAIM = "test-models"
# On GPU nodes, which have both images: the step that fetches runs that of the GPU.
PROFILE = f"""
cache: {{claim: {CLAIM}}}
steps:
  labels: [{{key: nvidia.com/gpu.present, operator: Exists}}]
  tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]
"""


@pytest.fixture
def _claim() -> Iterator[None]:
    """A claim that is bound to a folder which every node has, and everybody may write to."""
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume: kube.Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"imagekiln-{CLAIM}"},
        "spec": {
            **common,
            "capacity": size,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/tmp", "type": "Directory"},  # noqa: S108  # of a test's node
        },
    }
    claim: kube.Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": kube.NAMESPACE},
        "spec": {
            **common,
            "resources": {"requests": size},
            "volumeName": f"imagekiln-{CLAIM}",
        },
    }
    kube.apply([volume, claim])
    yield
    kube.kubectl("delete", "pvc", CLAIM, "--wait=false")
    kube.kubectl("delete", "pv", f"imagekiln-{CLAIM}", "--wait=false")


@pytest.mark.usefixtures("_claim")
def test_models_are_fetched_once_into_the_claim_and_every_pod_has_them(
    argo: ArgoApi, tmp_path: Path
) -> None:
    job = job_with_profile(tmp_path, "test-claim", PROFILE)
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)
    assert verify(run).ok == len(jobs.TEXTS)
    nodes = kube.get_field(kube.get("workflow", name), "status", "nodes")
    assert isinstance(nodes, dict)
    steps = [node["templateName"] for node in nodes.values() if node["type"] == "Pod"]
    assert steps.count("fetch") == 1
    assert steps.count("generate") == 2
