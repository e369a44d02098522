"""A workflow's status, from objects of the shape that Argo 4.1 writes."""

import base64
import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.cli.status import status_line, status_text
from imagekiln.workflows.client.pods import StepFailure
from imagekiln.workflows.client.status import UNFIT_CAUSES, PodCounts, read_status
from imagekiln.workflows.objects import Json
from imagekiln.workflows.templates.pod_retries import FINAL_EXIT_CODES

HOUR = "2026-11-21T01:00:00Z"


def workflow(*nodes: Json, phase: str = "Running", **state: object) -> Json:
    metadata = {"name": "postcards-1", "namespace": "images"}
    nodes_by_id = {str(node["id"]): node for node in nodes}
    return {
        "metadata": metadata,
        "status": {"phase": phase, "startedAt": HOUR, "nodes": nodes_by_id, **state},
    }


def plan(images: int, pods: int, **more: str) -> Json:
    outputs = {"run": "s3://out/run", "images": str(images), "pods": str(pods), **more}
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
    parent_id = f"postcards-1-9{number}"
    parent = {**common, "type": "Retry", "id": parent_id, "phase": "Running"}
    return [{**parent, "children": [child["id"] for child in children]}, *children]


def pod(phase: str, progress: str = "0/1", **more: object) -> Json:
    return {"phase": phase, "progress": progress, "startedAt": HOUR, **more}


UNFIT = "no node fits the profile"
LOCKED = "other batches hold the semaphore or mutex"


def ago(**duration: int) -> str:
    return (datetime.now(UTC) - timedelta(**duration)).isoformat()


@pytest.mark.parametrize(
    ("progress", "made"),
    [
        (["64/64", "64/64", "1/1", "44/44"], 64 + 64 + 60 + 44),  # Argo never read the third
        (["1/1", "1/1", "1/1", "0/1"], 180),
        (["64/64", "64/64", "64/64", "44/44", "64/64"], 300),
    ],
)
def test_images_are_those_of_the_pods_progress_and_the_share_of_others(
    progress: list[str], made: int
) -> None:
    phases = ["Running" if counts == "0/1" else "Succeeded" for counts in progress]
    pods = [shard(place, pod(phases[place], counts)) for place, counts in enumerate(progress)]
    status = read_status(workflow(plan(300, 5), *(node for nodes in pods for node in nodes)))
    assert (status.run, status.images, status.made) == ("s3://out/run", 300, made)
    running = phases.count("Running")
    done = len(phases) - running
    assert status.pods == PodCounts(waiting=0, running=running, done=done, failed=0)


def aggregate(number: int, figures: str) -> Json:
    return {
        "id": f"postcards-1-8{number}", "type": "Pod", "templateName": "aggregate",
        "phase": "Succeeded", "outputs": {"parameters": [{"name": "figures", "value": figures}]},
    }  # fmt: skip


def test_result_has_what_the_run_took_once_for_all_attempts_at_aggregating_it() -> None:
    figures = json.dumps({"ok": 90, "drawing": 7200, "loading": 1800, "idle": 0, "cost": 6.25})
    attempts = [aggregate(0, "{}"), aggregate(1, figures), aggregate(2, figures)]
    attempts.append({**aggregate(3, ""), "outputs": None, "phase": "Error"})
    retry_node: Json = {
        "id": "postcards-1-9", "type": "Retry", "templateName": "aggregate", "phase": "Succeeded",
        "children": [attempt["id"] for attempt in attempts],
    }  # fmt: skip
    nodes = [plan(90, 3), retry_node, *attempts]
    text = status_text(read_status(workflow(*nodes, phase="Succeeded")))
    assert "\nTook:    2.5 device-hours (drawing 2, loading 0.5), cost 6.25" in text


def test_a_run_that_has_ended_counts_what_it_stores_and_not_what_pods_told() -> None:
    figures = json.dumps({"ok": 80, "outscored": 240, "failed": 3, "blank": 0, "cost": 1.5})
    nodes = [plan(323, 3), aggregate(0, figures)]
    line = status_line(read_status(workflow(*nodes, phase="Succeeded")))
    assert line.endswith("Succeeded; 80 images (3 failed, 240 outscored)")
    assert "0 of 323 images" in status_line(read_status(workflow(*nodes, phase="Running")))


@pytest.mark.parametrize("figures", ["", "{{outputs}}", '{"cost": 0}'])
def test_figures_that_say_nothing_are_omitted(figures: str) -> None:
    status = read_status(workflow(plan(90, 3), aggregate(0, figures), phase="Succeeded"))
    assert "Took" not in status_text(status)
    assert status.cost is None


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("0/4 nodes are available: 2 Insufficient nvidia.com/gpu, 2 had taint.", "no GPU is free"),
        ("0/4 nodes are available: 4 cannot allocate all claims.", "no GPU is free"),
        ("0/2 nodes are available: 2 Insufficient memory.", "no node has room"),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", UNFIT),
        ('pods "a" is forbidden: exceeded quota: imagekiln, requested: ', "the quota is used up"),
        ('ImagePullBackOff: Back-off pulling image "a"', "the image cannot be pulled"),
        ("pod has unbound immediate PersistentVolumeClaims.", "a volume is not ready"),
        ("Waiting for images/ConfigMap/imagekiln-gpus/h100 lock. Lock status: 0/4", LOCKED),
        ("Something new", "Something new"),
        ("PodInitializing", "it is being started"),
    ],
)
def test_waiting_pods_are_counted_by_what_they_wait_for(message: str, cause: str) -> None:
    stuck = pod("Pending", message=message)
    status = read_status(workflow(plan(60, 3), *shard(0, stuck), *shard(1, stuck)))
    (wait,) = status.waits
    assert (wait.step, wait.pods, wait.cause, wait.message) == ("generate", 2, cause, message)
    says_more = message not in (cause, "PodInitializing")
    detail = f" ({message})" if says_more else ""
    if cause in UNFIT_CAUSES:
        detail = f", `imagekiln doctor JOB` says whether any node can{detail}"
    assert status_line(status).endswith(f"; generate (2 pods) waits: {cause}{detail}")


def test_line_is_short_while_other_pods_run() -> None:
    stuck = pod("Pending", message="0/4 nodes: 4 Insufficient nvidia.com/gpu.")
    status = read_status(workflow(plan(60, 2), *shard(0, stuck), *shard(1, pod("Running"))))
    assert status_line(status).endswith("; generate waits: no GPU is free")


def test_pause_before_the_next_attempt_is_a_wait_and_no_failure() -> None:
    failed = pod("Failed", message="main: Error (exit code 75): storage failed")
    retry_node, *pods = shard(0, failed)
    retry_node["message"] = "Backoff for 30 seconds"
    status = read_status(workflow(plan(60, 2), retry_node, *pods))
    assert (status.failures, status.pods.waiting, status.pods.failed) == ((), 1, 0)
    assert status_line(status).endswith(
        "; generate waits: the next attempt comes after a pause (Backoff for 30 seconds; the last "
        "one ended with main: Error (exit code 75): storage failed)"
    )


@pytest.mark.parametrize("exit_code", FINAL_EXIT_CODES)
def test_no_attempt_is_awaited_after_an_exit_code_that_is_not_retried(exit_code: str) -> None:
    message = f"main: Error (exit code {exit_code}): no column 'prompt'"
    failed = pod("Failed", message=message, outputs={"exitCode": exit_code})
    status = read_status(workflow(plan(60, 2), *shard(0, failed)))
    assert (status.waits, status.pods.waiting, status.pods.failed) == ((), 0, 1)
    assert [failure.exit_code for failure in status.failures] == [int(exit_code)]
    # That of another container is none: Argo retries it as -1.
    of_init = pod("Failed", message=f"init: Error (exit code {exit_code})")
    status = read_status(workflow(plan(60, 2), *shard(0, of_init)))
    assert (status.failures, status.pods.waiting, status.pods.failed) == ((), 1, 0)


def test_run_that_had_finished_before_has_all_its_images_without_pods() -> None:
    status = read_status(workflow(plan(300, 0, canary="0")))
    assert (status.images, status.made) == (300, 300)


def test_whole_workflow_may_wait() -> None:
    lock = "Waiting for images/Mutex/nights lock. Lock status: 0/1"
    mutex: Json = {
        "id": "postcards-1-7", "type": "DAG", "templateName": "shards", "displayName": "generate",
        "phase": "Pending", "message": lock,
    }  # fmt: skip
    (wait,) = read_status(workflow(plan(60, 2), mutex)).waits
    assert (wait.step, wait.cause) == ("generate", LOCKED)
    suspended = {**workflow(), "spec": {"suspend": True}}
    assert "waits: it is suspended" in status_line(read_status(suspended))
    untouched: Json = {"metadata": {"name": "a", "namespace": "b", "creationTimestamp": HOUR}}
    assert "controller has not started it" in status_line(read_status(untouched))


def step(name: str, phase: str = "Running", **more: object) -> Json:
    return {"id": f"postcards-1-{name}", "type": "Pod", "templateName": name, "phase": phase} | more


@pytest.mark.parametrize(
    ("nodes", "stage"),
    [
        ([], "plan"),
        ([step("rewrite")], "rewrite"),
        ([step("fetch-language-model")], "rewrite"),
        ([step("plan")], "plan"),
        ([plan(60, 2)], "generate"),
        ([plan(60, 2), step("fetch")], "fetch"),
        ([plan(60, 2), *shard(0, pod("Running"))], "generate"),
        ([plan(60, 2), *shard(0, pod("Succeeded")), step("aggregate")], "aggregate"),
        ([plan(60, 2), step("aggregate", "Succeeded"), step("report")], "report"),
    ],
)
def test_stage_is_the_furthest_that_has_begun(nodes: list[Json], stage: str) -> None:
    status = read_status(workflow(*nodes))
    assert status.stage == stage
    assert f": Running; {stage}" in status_line(status)


def test_report_that_argo_could_not_keep_is_a_warning_of_a_good_workflow() -> None:
    sentence = "http://store:9000/reports: Argo's artifact store does not answer (timed out)."
    failed = step("publish-report", "Failed", message=f"main: Error (exit code 75): {sentence}")
    status = read_status(
        workflow(plan(60, 1), *shard(0, pod("Succeeded")), failed, phase="Succeeded")
    )
    assert (status.failures, status.cause) == ((), None)
    assert status_text(status).splitlines()[-1] == f"Warning: publish-report: {sentence}"


def test_last_line_of_a_failed_workflow_is_the_cause() -> None:
    retries = {"phase": "Failed", "message": "No more retries left"}
    shards: list[Json] = []
    for number, reason in enumerate(("no GPU", "disk full", "no GPU")):
        failed = pod("Failed", message=f"main: Error (exit code 75): {reason}")
        retry_node, *attempts = shard(number, failed, failed)
        shards += [retry_node | retries, *attempts]
    missing = step("aggregate", "Failed", message="main: Error (exit code 3): 40 are missing")
    status = read_status(workflow(plan(60, 3), *shards, missing, phase="Failed"))
    assert status.cause == "generate of shards 0, 2: no GPU"
    assert status_text(status).splitlines()[-1] == f"Cause: {status.cause}"
    message = "main: Error (exit code 75): no GPU"
    assert status.failures[0] == StepFailure("generate", 0, 2, message)


def test_workflow_that_was_stopped_says_so() -> None:
    resume = "somebody stopped the workflow; `imagekiln resubmit postcards-1 -n images` resumes it"
    stopped = {"phase": "Failed", "message": "Stopped with strategy 'Stop'"}
    assert read_status(workflow(**stopped)).cause == resume
    pods = [pod("Failed", message="workflow shutdown with strategy:  Stop")]
    ended = [{**node, "phase": "Failed"} for node in shard(0, *pods)]
    assert read_status(workflow(plan(60, 2), *ended, **stopped)).cause == resume

    # One that failed before is the cause.
    broken = [{**node, "phase": "Failed"} for node in shard(1, pod("Failed", message="no GPU"))]
    both = workflow(plan(60, 2), *ended, *broken, **stopped)
    assert read_status(both).cause == "generate of shard 1: no GPU"


def test_rate_is_that_of_the_pods_that_run() -> None:
    """As fast as pods were so far: also of those that ended, and not in the pauses between."""
    ended = pod("Succeeded", "1800/1800", finishedAt="2026-11-21T01:30:00Z")
    running = pod("Running", "900/1800", startedAt=ago(minutes=15))
    parent = workflow(plan(5400, 3), *shard(0, ended), *shard(1, running), *shard(2, running))
    status = read_status(parent)
    assert (round(status.rate or 0, 2), round(status.seconds_left or 0, -1)) == (2.0, 900)
    assert "; 2.00 images/s; 0:1" in status_line(status)
    over = workflow(plan(60, 1), *shard(0, pod("Succeeded", "60/60")), step("aggregate"))
    assert "images/s" not in status_line(read_status(over))


def test_workflow_that_is_not_planned_yet_has_no_images() -> None:
    status = read_status({"metadata": {"name": "a", "namespace": "b"}})
    assert (status.phase, status.run, status.images) == ("Pending", None, None)


@pytest.mark.parametrize(
    ("attempts", "made"),
    [
        (["30/30", "0/1", "45/70"], 75),
        (["20/100", "45/70"], 65),  # a kill, before Argo read of ten more
        (["20/100", "70/70"], 90),  # what Argo has not read is counted by aggregate
    ],
)
def test_a_pod_has_made_what_all_its_attempts_made(attempts: list[str], made: int) -> None:
    *failed, last = attempts
    phase = "Succeeded" if last == "70/70" else "Running"
    pods = [*(pod("Failed", progress) for progress in failed), pod(phase, last)]
    assert read_status(workflow(plan(100, 1), *shard(0, *pods))).made == made


def test_canary_counts_with_its_sample_alone() -> None:
    canary = shard(0, pod("Succeeded", "24/24"))
    parent = workflow(plan(2024, 3, canary="1"), *canary)
    assert read_status(parent).made == 24

    # A child workflow begins with the canary's shard, of which nothing is left to make.
    again = shard(0, pod("Succeeded", "24/24"))
    done, running = pod("Succeeded", "1000/1000"), pod("Running", "100/1000")
    child = workflow(*again, *shard(1, done), *shard(2, running))
    assert read_status(parent, [child]).made == 24 + 1000 + 100


def test_compressed_nodes_are_read() -> None:
    whole = workflow(plan(90, 3), *shard(0, pod("Running", "7/30")))
    nodes = whole["status"]["nodes"]  # type: ignore[index]
    compressed = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    assert read_status(workflow(compressedNodes=compressed)).made == 7


def test_nodes_in_argos_database_need_argos_server() -> None:
    with pytest.raises(BadInput, match="Set ARGO_SERVER"):
        read_status(workflow(offloadNodeStatusVersion="fnv:1"))
