"""A quota delays pods, and fails none."""

import json
from collections.abc import Iterator

import pytest

from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import watch
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_success

GPUS = 4
SHARDS = 20


@pytest.fixture
def _small_quota() -> Iterator[None]:
    """Room for four GPU pods with Argo's containers, and for one CPU pod beside them."""
    hard = {
        "requests.nvidia.com/gpu": str(GPUS),
        "requests.cpu": "3",
        "requests.memory": "12Gi",
        "limits.memory": "14Gi",
    }
    before = kube.get_field(kube.get("resourcequota", kube.NAMESPACE), "spec", "hard")
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
    name = submit_with_template(
        jobs.job(prompts=uri, shard={"images": 2}, defaults={"steps": 2}, cluster=cluster), argo
    )
    peak = 0
    for status in watch(name, kube.NAMESPACE, argo, every=1):
        active = [
            each
            for each in kube.pods(name, "generate")
            if kube.get_field(each, "status", "phase") in ("Pending", "Running")
        ]
        peak = max(peak, len(active))
        assert status.failures == ()
    assert 1 < peak <= GPUS
    assert verify(wait_for_success(name, argo)).ok == 2 * SHARDS
