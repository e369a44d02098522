"""A sweep on a cluster whose pods are killed at random: what is published is what one machine does.

Needs the GPU image with `scorers/`: CONTRIBUTING.md.
"""

import random
import re
import time
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.export.push import push
from imagekiln.steps.export.settings import read_settings
from imagekiln.steps.export.step import export
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_success
from tests.dataset_hub import REPOSITORY, TOKEN, dataset_hub

SEED = 0
KILLS = {"plan": 1, "generate": 4, "aggregate": 1}  # fewer than a pod has retries
PAUSE_SECONDS = 5.0  # at most, from one kill to the next
SCORERS = Path(__file__).parent / "scorers"
GROUPS = 16  # of four candidates
Files = dict[str, bytes]


def sweep_job() -> Job:
    """Prompts x seeds x guidance from a template in the bucket, the best one of four kept."""
    folder = f"{jobs.BUCKET}/templates/{uuid4().hex[:12]}"
    with fsspec.open(f"{folder}/wildcards/ink.txt", "wb") as file:
        file.write(b"red\nblue\n")
    table = jobs.prompts({"ground": ["green", "yellow"], "id": ["g", "y"]})
    prompts = {
        "template": "a __ink__ circle on a {{ ground }} background",
        "table": table,
        "wildcards": f"{folder}/wildcards",
        "sweep": {"seed": [10, 20], "guidance": [1.5, 3.0]},
    }
    return jobs.job(
        prompts=prompts,
        scores={"variance": {"kind": "own", "entry": "kiln_test_score:variance"}},
        keep="best 1 of 4 by variance",
        defaults={"steps": 25},
        shard={"images": 16},
        part={"images": 4},
        batch={"images": 4},
    )


def kill_pods(workflow: str, argo: ArgoApi) -> list[str]:
    """Delete pods of the steps at random while the workflow runs. Returns the steps they ran."""
    dice = random.Random(SEED)  # noqa: S311  # nothing secret
    killed: list[str] = []
    while len(killed) < sum(KILLS.values()):
        if get_status(workflow, kube.NAMESPACE, argo).ended:
            break
        time.sleep(dice.uniform(0, PAUSE_SECONDS))
        running = [
            pod
            for pod in kube.pods(workflow)
            if kube.get_field(pod, "status", "phase") == "Running"
            and killed.count(step_of(pod)) < KILLS.get(step_of(pod), 0)
        ]
        if running:
            pod = dice.choice(running)
            grace = dice.choice(["0", "0", "30"])  # SIGKILL, or SIGTERM and time to end
            force = ["--force"] if grace == "0" else ["--wait=false"]
            kube.kubectl(
                *("delete", "pod", kube.name(pod), "--grace-period", grace),
                *("--ignore-not-found", *force),
            )
            killed.append(step_of(pod))
    return killed


def step_of(pod: kube.Object) -> str:
    """The step that a pod runs."""
    return str(kube.get_field(pod, "metadata", "labels", "imagekiln.dev/step"))


def publish(run: str, exported: str) -> Files:
    """Export a run, push that to a new hub, and return the files of the version."""
    export(run, exported, read_settings(partition_by="prompt"))
    with dataset_hub() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", TOKEN)
        push(exported, f"hf://datasets/{REPOSITORY}", "v1")
        return hub.commits[hub.tags["v1"]]


def without_plan_time(files: Files) -> dict[str, object]:
    """Files of a version without the time at which each run was planned, and digests of it."""
    contents: dict[str, object] = {}
    for name, body in files.items():
        key = _without_digest(name)
        if not name.endswith(".parquet"):
            contents[key] = re.sub(rb"(description: \d+ images, )[0-9a-f]{16}", rb"\1", body)
            continue
        rows = pq.read_table(pa.BufferReader(body)).to_pylist()
        for row in rows:
            row.pop("created_at", None)
            if "file" in row:
                row["file"] = _without_digest(row["file"])
        contents[key] = rows
    return contents


def _without_digest(name: str) -> str:
    return re.sub(r"(\d{6}-\d{5})-[0-9a-f]+", r"\1", name)


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub 2.4.0
def test_a_sweep_whose_pods_are_killed_is_published_as_one_machine_does(
    argo: ArgoApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCORERS))
    job = sweep_job()
    name = submit_with_template(job, argo)
    killed = kill_pods(name, argo)
    run = wait_for_success(name, argo)
    assert "generate" in killed
    checked = verify(run)
    assert (checked.images, checked.ok) == (4 * GROUPS, GROUPS)

    here = jobs.run_here(job, tmp_path / "here")
    assert jobs.image_hashes(run) == jobs.image_hashes(here)
    published = publish(run, f"{jobs.BUCKET}/exports/{uuid4().hex[:12]}")
    expected = publish(here, str(tmp_path / "export"))
    assert without_plan_time(published) == without_plan_time(expected)
    assert len(published) == 4 + 2  # a file for each prompt, the manifest and the card
