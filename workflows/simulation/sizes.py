"""How large a run gets: its workflow objects, by what is really rendered, and what planning takes.

Rates and amounts were measured; docs/performance.md and docs/LOG.md have the conditions.
"""

import base64
import gzip
import hashlib
import json
from typing import cast

from pydantic import TypeAdapter

from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.sharding import Sharding
from imagekiln.steps.runs.plan import Shard
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.child_workflows import MAX_PODS
from imagekiln.workflows.templates.dag import GROUP_SHARDS
from imagekiln.workflows.templates.workflow import build_workflow
from imagekiln.workflows.templates.workflow_template import build_workflow_template

MIB = 2**20
PLANNED_ROWS_PER_SECOND = 276_000  # of one shape, on two cores
OBJECTS_PER_SHARD = 3  # its rows, its statistics, its manifest
PLANNING_MIB = 596  # of a million rows; 605 of ten million
PLANNING_MIB_PER_MILLION_ROWS = 1.0
# The disk that planning takes for a million rows: their texts as they are read, and once more by
# shape where there are several.
PLANNING_DISK_MIB_PER_MILLION_ROWS = 531
AGGREGATED_IMAGES_PER_SECOND = 252_000
SHARD_LIST = TypeAdapter(tuple[Shard, ...])
SAMPLE_SHARDS = 100
# As Argo compresses the nodes of a workflow that is larger, and refuses one that stays larger.
ARGO_MAX_WORKFLOW_BYTES = MIB
TIME = "2026-11-23T01:30:{:02d}Z"


def plan_bytes(sharding: Sharding) -> float:
    """The size of plan.json, which every pod reads, by the part of it that grows."""
    digest = hashlib.sha256(b"").hexdigest()
    sample = tuple(Shard(images, digest) for images in sharding.shard_images[:SAMPLE_SHARDS])
    if not sample:
        return 0.0
    per_shard = len(SHARD_LIST.dump_json(sample, indent=1)) / len(sample)
    return per_shard * len(sharding.shard_images)


def count_objects(job: Job, sharding: Sharding) -> int:
    """The objects that a run leaves: of its shards, and of its parts in the job's format."""
    shards = len(sharding.shard_images)
    parts = sum(map(sharding.part_count, range(shards)))
    images = sum(sharding.shard_images)
    part_objects = {"parquet": parts, "webdataset": 2 * parts, "files": parts + images}[job.format]
    return part_objects + OBJECTS_PER_SHARD * shards


def workflow_bytes(job: Job, profile: Profile, pods: int, attempts: int) -> int:
    """The size of the largest workflow, as Argo stores it: its nodes compressed if it is large.

    `attempts` are those of all `pods`, of which a workflow holds some.
    """
    if not pods:
        return 0
    in_workflow = min(pods, MAX_PODS)
    workflow = build_workflow(_with_uris(job), profile)
    template = build_workflow_template(profile, job.cluster.namespace)
    name = str(cast("Json", workflow["metadata"])["name"])
    retries = round((attempts - pods) * in_workflow / pods)
    nodes: dict[str, Json] = {}
    for pod in range(in_workflow):
        more = retries // in_workflow + (pod < retries % in_workflow)
        nodes |= _pod_nodes(job, profile, name, pod, tries=1 + more)
    status = {
        "storedWorkflowTemplateSpec": template["spec"],
        "nodes": nodes,
        "taskResultsCompletionStatus": dict.fromkeys(nodes, True),
    }
    whole = _json_bytes(workflow | {"status": status})
    if len(whole) <= ARGO_MAX_WORKFLOW_BYTES:
        return len(whole)
    packed = base64.b64encode(gzip.compress(_json_bytes(nodes))).decode()
    del status["nodes"]
    return len(_json_bytes(workflow | {"status": status | {"compressedNodes": packed}}))


def _with_uris(job: Job) -> Job:
    """The job with URIs in place of paths, which no pod could read: its text is about as long."""
    paths: dict[str, object] = {
        "prompts": "s3://prompts/*.parquet",
        "output": "s3://datasets",
        "model": job.model.model_copy(update={"id": "organization/model"}),
        "batch": job.batch.model_copy(update={"tuning": None}),
    }
    return job.model_copy(update=paths)


def _pod_nodes(job: Job, profile: Profile, name: str, pod: int, tries: int) -> dict[str, Json]:
    """What Argo keeps of a pod: a node for its retries, and one for each attempt."""
    group = pod // GROUP_SHARDS
    index = pod % GROUP_SHARDS
    retry_name = f"{name}.generate.group({group}:{group}).shard({index}:{pod})"
    names = [retry_name, *(f"{retry_name}({attempt})" for attempt in range(tries))]
    ids = [_node_id(name, node_name) for node_name in names]
    common = {
        "templateName": "generate",
        "templateScope": f"local/{name}",
        "phase": "Succeeded",
        "boundaryID": _node_id(name, f"{name}.generate.group({group}:{group})"),
        "startedAt": TIME.format(pod % 60),
        "finishedAt": TIME.format(index),
        "progress": f"{job.shard.images or 2000}/{job.shard.images or 2000}",
        "resourcesDuration": {"cpu": 7200 + pod, "memory": 43_200 + pod, profile.gpu.resource: pod},
        "inputs": {
            "parameters": [
                {"name": "run", "value": f"{job.output}/{job.name}-{'0' * 12}"},
                {"name": "shard", "value": str(pod)},
            ]
        },
        "outputs": {"exitCode": "0", "artifacts": [_log_artifact(name, ids[-1])]},
    }
    node_name = f"gpu-node-{_digits(retry_name)}"
    nodes: dict[str, Json] = {
        ids[0]: {"id": ids[0], "name": names[0], "type": "Retry", "children": ids[1:], **common}
    }
    for attempt_id, attempt_name in zip(ids[1:], names[1:], strict=True):
        own = {"id": attempt_id, "name": attempt_name, "type": "Pod", "hostNodeName": node_name}
        nodes[attempt_id] = {**own, "nodeFlag": {"retried": True}, **common}
    return {node_id: {**node, "displayName": _display(node)} for node_id, node in nodes.items()}


def _display(node: Json) -> str:
    return str(node["name"]).rpartition(".")[2]


def _log_artifact(name: str, node_id: str) -> Json:
    return {"name": "main-logs", "s3": {"key": f"{name}/{node_id}/main.log"}}


def _node_id(name: str, node_name: str) -> str:
    return f"{name}-{_digits(node_name)}"


def _digits(text: str) -> str:
    """Ten digits that follow from a text, as the numbers in Argo's ids do."""
    return str(int(hashlib.sha256(text.encode()).hexdigest(), 16))[-10:]


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
