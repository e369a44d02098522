"""Passes in pods of their own: drawn in one fan-out, finished in the next, the same dataset."""

from pathlib import Path

import pytest

from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.keys import DRAWN_FOLDER
from imagekiln.steps.runs.stats import load_stats
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_pod, wait_for_success

PASSES: dict[str, object] = {
    "passes": {"larger": {"kind": "refine", "scale": 1.5, "strength": 0.6}},
    "separate_passes": True,
}


def objects(run: str, folder: str) -> list[str]:
    """The keys of the objects in a folder of a run."""
    return [entry.key for entry in open_store(run).list_folder(folder)]


@pytest.mark.parametrize("canary", [None, 2])
def test_passes_in_pods_of_their_own_give_the_dataset_of_a_local_run(
    argo: ArgoApi, tmp_path: Path, canary: int | None
) -> None:
    cluster: dict[str, object] = {"namespace": kube.NAMESPACE, "profile": "test"}
    if canary is not None:
        cluster["canary"] = canary
    job = jobs.job(**PASSES, cluster=cluster)
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)

    status = get_status(name, kube.NAMESPACE, argo)
    shards = 2 if canary is None else 3
    assert (status.made, status.images) == (len(jobs.TEXTS), len(jobs.TEXTS))
    assert status.pods.done == shards
    assert objects(run, DRAWN_FOLDER) == []
    assert verify(run).ok == len(jobs.TEXTS)

    local = jobs.run_here(job.model_copy(update={"separate_passes": False}), tmp_path)
    assert jobs.image_hashes(run) == jobs.image_hashes(local)
    for shard in range(2):
        stats = load_stats(open_store(run), shard)
        assert stats is not None
        assert stats.seconds.denoise > 0
        assert [*stats.seconds.passes] == ["larger"]


def test_a_pod_that_is_lost_while_images_wait_for_passes_is_made_up_for(
    argo: ArgoApi, tmp_path: Path
) -> None:
    job = jobs.job(**PASSES)
    name = submit_with_template(job, argo)
    kube.wait_until(
        600, "an object that waits for its passes", lambda: _drawn(job.output, str(job.run_id))
    )
    pod = wait_for_pod(name, "generate")
    kube.kubectl("delete", "pod", kube.name(pod), "--grace-period=0", "--force")
    run = wait_for_success(name, argo)
    assert objects(run, DRAWN_FOLDER) == []
    local = jobs.run_here(job, tmp_path)
    assert jobs.image_hashes(run) == jobs.image_hashes(local)


def _drawn(output: str, run_id: str) -> list[str]:
    return objects(f"{output}/{run_id}", DRAWN_FOLDER)
