"""A quota holds back pods, and fails none."""

import json
from collections.abc import Iterator

import pytest

from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import watch
from tests.cluster import jobs, kube
from tests.cluster.ending import submitted, succeeded

GPUS = 4
SHARDS = 20


@pytest.fixture
def _small_quota() -> Iterator[None]:
    """Four GPUs, and CPU and memory for four pods with Argo's own containers and for one CPU pod beside them."""
    hard = {
        "requests.nvidia.com/gpu": str(GPUS),
        "requests.cpu": "3",
        "requests.memory": "12Gi",
        "limits.memory": "14Gi",
    }
    before = kube.at(kube.get("resourcequota", kube.NAMESPACE), "spec", "hard")
    _set({**dict.fromkeys(before or {}), **hard})  # type: ignore[call-overload]
    yield
    _set({**dict.fromkeys(hard), **before})  # type: ignore[dict-item]


def _set(hard: dict[str, object]) -> None:
    change = json.dumps({"spec": {"hard": hard}})
    kube.kubectl("patch", "resourcequota", kube.NAMESPACE, "--type", "merge", "--patch", change)


@pytest.mark.usefixtures("_small_quota")
def test_twenty_shards_go_through_four_gpus(argo: ArgoApi) -> None:
    texts = [jobs.TEXTS[place % len(jobs.TEXTS)] for place in range(2 * SHARDS)]
    uri = jobs.prompts({"prompt": [*texts], "seed": list(range(2 * SHARDS))})
    cluster = {"namespace": kube.NAMESPACE, "profile": "test", "parallelism": SHARDS}
    name = submitted(
        jobs.job(prompts=uri, shard={"images": 2}, defaults={"steps": 2}, cluster=cluster), argo
    )
    most = 0
    for status in watch(name, kube.NAMESPACE, argo, every=1):
        there = [
            each
            for each in kube.pods(name, "generate")
            if kube.at(each, "status", "phase") in ("Pending", "Running")
        ]
        most = max(most, len(there))
        assert status.failures == ()
    assert 1 < most <= GPUS
    assert verify(succeeded(name, argo)).ok == 2 * SHARDS
