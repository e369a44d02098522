"""What a workflow's object says of the run: the shape is that of Argo 4.1's own."""

import base64
import json
import zlib

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.cli.status import status_line
from imagekiln.workflows.client.status import PodCounts, StepFailure, read_status
from imagekiln.workflows.objects import Json

HOUR = "2026-11-21T01:00:00Z"


def workflow(*nodes: Json, phase: str = "Running", **state: object) -> Json:
    about = {"name": "postcards-1", "namespace": "images"}
    kept = {str(node["id"]): node for node in nodes}
    return {
        "metadata": about,
        "status": {"phase": phase, "startedAt": HOUR, "nodes": kept, **state},
    }


def plan(images: int, pods: int) -> Json:
    given = {"run": "s3://out/run", "images": str(images), "pods": str(pods)}
    parameters = [{"name": key, "value": value} for key, value in given.items()]
    return {
        "id": "postcards-1-1", "type": "Pod", "templateName": "plan", "phase": "Succeeded",
        "outputs": {"parameters": parameters},
    }  # fmt: skip


def shard(number: int, *pods: Json) -> list[Json]:
    """A shard's retry node and its pods."""
    common: Json = {
        "templateName": "generate",
        "inputs": {
            "parameters": [
                {"name": "run", "value": "s3://out/run"},
                {"name": "shard", "value": str(number)},
            ]
        },
    }
    children = [
        {**common, "type": "Pod", "id": f"postcards-1-{number}{place}", **pod}
        for place, pod in enumerate(pods)
    ]
    parent = {**common, "type": "Retry", "id": f"postcards-1-9{number}", "phase": "Running"}
    return [{**parent, "children": [child["id"] for child in children]}, *children]


def pod(phase: str, progress: str = "0/1", **more: object) -> Json:
    return {"phase": phase, "progress": progress, "startedAt": HOUR, **more}


def test_images_are_what_running_pods_say_and_what_done_pods_had() -> None:
    found = read_status(
        workflow(
            plan(90, 3), *shard(0, pod("Succeeded", "1/1")), *shard(1, pod("Running", "12/30"))
        )
    )
    assert (found.run, found.images, found.made) == ("s3://out/run", 90, 42)
    assert found.pods == PodCounts(waiting=0, running=1, done=1, failed=0)


def test_what_a_pod_waits_for_is_said_while_none_runs() -> None:
    stuck = pod("Pending", message='ImagePullBackOff: Back-off pulling image "a"')
    found = read_status(workflow(plan(60, 2), *shard(0, stuck), *shard(1, pod("Pending"))))
    assert status_line(found).endswith(
        '; waiting, generate: ImagePullBackOff: Back-off pulling image "a"'
    )
    assert (
        read_status(workflow(plan(60, 2), *shard(0, stuck), *shard(1, pod("Running")))).waits
        is None
    )


def test_shard_is_counted_once_however_often_it_is_tried() -> None:
    tried = (pod("Failed", "20/30", message="pod deleted"), pod("Running", "22/30"))
    found = read_status(workflow(plan(30, 1), *shard(0, *tried)))
    assert (found.made, found.pods.running, found.failures) == (22, 1, ())


def test_failures_name_step_shard_attempts_and_reason() -> None:
    message = "Error (exit code 75): no GPU"
    found = read_status(
        workflow(
            plan(30, 1), *shard(0, pod("Failed"), pod("Failed", message=message)), phase="Failed"
        )
    )
    assert found.failures == (StepFailure("generate", 0, 2, message),)
    assert found.failures[0].exit_code == 75


def test_rate_is_over_the_time_since_the_first_shard_began() -> None:
    ended = workflow(
        plan(3600, 1),
        *shard(0, pod("Succeeded")),
        phase="Succeeded",
        finishedAt="2026-11-21T02:00:00Z",
    )
    found = read_status(ended)
    assert (found.rate, found.seconds_left, found.ended) == (1.0, 0.0, True)


def test_unplanned_workflow_knows_no_images() -> None:
    found = read_status({"metadata": {"name": "a", "namespace": "b"}})
    assert (found.phase, found.run, found.images, found.made, found.rate) == (
        "Pending",
        None,
        None,
        0,
        None,
    )


def test_further_workflows_count_too() -> None:
    first = workflow(plan(60, 2))
    further = workflow(*shard(0, pod("Succeeded")), *shard(1, pod("Running", "5/30")))
    found = read_status(first, [further])
    assert (found.made, found.pods.done, found.pods.running) == (35, 1, 1)


def test_nodes_that_argo_has_packed_are_read() -> None:
    whole = workflow(plan(90, 3), *shard(0, pod("Running", "7/30")))
    nodes = whole["status"]["nodes"]  # type: ignore[index]
    packer = zlib.compressobj(wbits=31)
    packed = base64.b64encode(packer.compress(json.dumps(nodes).encode()) + packer.flush()).decode()
    assert read_status(workflow(compressedNodes=packed)).made == 7


def test_nodes_in_argos_database_are_asked_for_elsewhere() -> None:
    with pytest.raises(BadInput, match="set ARGO_SERVER"):
        read_status(workflow(offloadNodeStatusVersion="fnv:1"))
