"""A workflow's status, from objects of the shape that Argo 4.1 writes."""

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
    metadata = {"name": "postcards-1", "namespace": "images"}
    nodes_by_id = {str(node["id"]): node for node in nodes}
    return {
        "metadata": metadata,
        "status": {"phase": phase, "startedAt": HOUR, "nodes": nodes_by_id, **state},
    }


def plan(images: int, pods: int) -> Json:
    outputs = {"run": "s3://out/run", "images": str(images), "pods": str(pods)}
    parameters = [{"name": key, "value": value} for key, value in outputs.items()]
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


def test_images_are_the_progress_of_running_pods_and_the_share_of_done_pods() -> None:
    status = read_status(
        workflow(
            plan(90, 3), *shard(0, pod("Succeeded", "1/1")), *shard(1, pod("Running", "12/30"))
        )
    )
    assert (status.run, status.images, status.made) == ("s3://out/run", 90, 42)
    assert status.pods == PodCounts(waiting=0, running=1, done=1, failed=0)


def test_reason_of_a_waiting_pod_is_reported_while_none_runs() -> None:
    stuck = pod("Pending", message='ImagePullBackOff: Back-off pulling image "a"')
    status = read_status(workflow(plan(60, 2), *shard(0, stuck), *shard(1, pod("Pending"))))
    assert status_line(status).endswith(
        '; waiting, generate: ImagePullBackOff: Back-off pulling image "a"'
    )
    assert (
        read_status(workflow(plan(60, 2), *shard(0, stuck), *shard(1, pod("Running")))).waits
        is None
    )


def test_shard_is_counted_once_for_all_its_attempts() -> None:
    attempts = (pod("Failed", "20/30", message="pod deleted"), pod("Running", "22/30"))
    status = read_status(workflow(plan(30, 1), *shard(0, *attempts)))
    assert (status.made, status.pods.running, status.failures) == (22, 1, ())


def test_failures_name_step_shard_attempts_and_reason() -> None:
    message = "Error (exit code 75): no GPU"
    status = read_status(
        workflow(
            plan(30, 1), *shard(0, pod("Failed"), pod("Failed", message=message)), phase="Failed"
        )
    )
    assert status.failures == (StepFailure("generate", 0, 2, message),)
    assert status.failures[0].exit_code == 75


def test_rate_is_over_the_time_since_the_first_shard_started() -> None:
    ended = workflow(
        plan(3600, 1),
        *shard(0, pod("Succeeded")),
        phase="Succeeded",
        finishedAt="2026-11-21T02:00:00Z",
    )
    status = read_status(ended)
    assert (status.rate, status.seconds_left, status.ended) == (1.0, 0.0, True)


def test_workflow_that_is_not_planned_yet_has_no_images() -> None:
    status = read_status({"metadata": {"name": "a", "namespace": "b"}})
    assert (status.phase, status.run, status.images, status.made, status.rate) == (
        "Pending",
        None,
        None,
        0,
        None,
    )


def test_child_workflows_are_counted_in() -> None:
    parent = workflow(plan(60, 2))
    child = workflow(*shard(0, pod("Succeeded")), *shard(1, pod("Running", "5/30")))
    status = read_status(parent, [child])
    assert (status.made, status.pods.done, status.pods.running) == (35, 1, 1)


def test_compressed_nodes_are_read() -> None:
    whole = workflow(plan(90, 3), *shard(0, pod("Running", "7/30")))
    nodes = whole["status"]["nodes"]  # type: ignore[index]
    compressor = zlib.compressobj(wbits=31)
    compressed = base64.b64encode(
        compressor.compress(json.dumps(nodes).encode()) + compressor.flush()
    ).decode()
    assert read_status(workflow(compressedNodes=compressed)).made == 7


def test_nodes_in_argos_database_need_argos_server() -> None:
    with pytest.raises(BadInput, match="Set ARGO_SERVER"):
        read_status(workflow(offloadNodeStatusVersion="fnv:1"))
