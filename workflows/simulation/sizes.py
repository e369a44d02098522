"""How large a run gets: its workflow objects, by what is really rendered, and what planning takes.

Rates and amounts were measured; docs/performance.md and docs/decisions.md have the conditions.
"""

import base64
import gzip
import hashlib
import json
from typing import cast

from pydantic import TypeAdapter

from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.sharding import DEFAULT_SHARD_IMAGES, Sharding
from imagekiln.steps.runs.plan import Shard
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.child_workflows import MAX_PODS
from imagekiln.workflows.templates.dag import GROUP_SHARDS
from imagekiln.workflows.templates.workflow import build_workflow
from imagekiln.workflows.templates.workflow_template import build_job_template

MIB = 2**20
PLANNED_ROWS_PER_SECOND = 276_000  # of one shape, on two cores
OBJECTS_PER_SHARD = 3  # its rows, its statistics, its manifest
PLANNING_MIB = 596  # of a million rows; 605 of ten million
PLANNING_MIB_PER_MILLION_ROWS = 1.0
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
    part_objects = {
        "parquet": parts,
        "webdataset": 2 * parts,
        "files": parts + images,
    }
    return part_objects[job.format] + OBJECTS_PER_SHARD * shards


def workflow_bytes(job: Job, profile: Profile, pods: int, attempts: int) -> int:
    """The size of the largest workflow, as Argo stores it: its nodes compressed if it is large.

    `attempts` are those of all `pods`, of which a workflow holds some.
    """
    if not pods:
        return 0
    workflow = build_workflow(_with_uris(job), profile)
    template = build_job_template(job, profile)
    metadata = cast("Json", workflow["metadata"])
    nodes = _workflow_nodes(job, profile, str(metadata["name"]), pods, attempts)
    status: Json = {
        "storedWorkflowTemplateSpec": template["spec"],
        "taskResultsCompletionStatus": dict.fromkeys(nodes, True),
    }

    whole = _json_bytes({**workflow, "status": {**status, "nodes": nodes}})
    if len(whole) <= ARGO_MAX_WORKFLOW_BYTES:
        return len(whole)
    compressed = gzip.compress(_json_bytes(nodes))
    packed = base64.b64encode(compressed).decode()
    return len(_json_bytes({**workflow, "status": {**status, "compressedNodes": packed}}))


def _workflow_nodes(
    job: Job, profile: Profile, name: str, pods: int, attempts: int
) -> dict[str, Json]:
    """The nodes of a full workflow, on whose pods the retries are spread evenly."""
    pods_here = min(pods, MAX_PODS)
    retries = round((attempts - pods) * pods_here / pods)
    most = retries // pods_here + 1
    pods_with_most = retries % pods_here
    nodes: dict[str, Json] = {}
    for pod in range(pods_here):
        tries = most + 1 if pod < pods_with_most else most
        nodes |= _pod_nodes(job, profile, name, pod, tries)
    return nodes


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
    group, index = divmod(pod, GROUP_SHARDS)
    group_name = f"{name}.generate.group({group}:{group})"
    retry_name = f"{group_name}.shard({index}:{pod})"
    attempt_names = [f"{retry_name}({attempt})" for attempt in range(tries)]
    attempt_ids = [_node_id(name, attempt_name) for attempt_name in attempt_names]
    common = {
        "templateName": "generate",
        "templateScope": f"local/{name}",
        "boundaryID": _node_id(name, group_name),
        **_node_facts(job, profile, pod),
        "outputs": _node_outputs(name, attempt_ids[-1]),
    }

    retry_id = _node_id(name, retry_name)
    retry: Json = {"type": "Retry", "children": attempt_ids}
    nodes = {retry_id: _node(retry_id, retry_name, retry, common)}
    attempt: Json = {
        "type": "Pod",
        "hostNodeName": f"gpu-node-{_digits(retry_name)}",
        "nodeFlag": {"retried": True},
    }
    for attempt_id, attempt_name in zip(attempt_ids, attempt_names, strict=True):
        nodes[attempt_id] = _node(attempt_id, attempt_name, attempt, common)
    return nodes


def _node(node_id: str, node_name: str, own: Json, common: Json) -> Json:
    display_name = node_name.rpartition(".")[2]
    return {"id": node_id, "name": node_name, "displayName": display_name, **own, **common}


def _node_facts(job: Job, profile: Profile, pod: int) -> Json:
    """What Argo notes of a pod that made a shard. Digits differ, as they do in a real run."""
    images = job.shard.images or DEFAULT_SHARD_IMAGES
    run = {"name": "run", "value": f"{job.output}/{job.name}-{'0' * 12}"}
    shard = {"name": "shard", "value": str(pod)}
    return {
        "phase": "Succeeded",
        "startedAt": TIME.format(pod % 60),
        "finishedAt": TIME.format(pod % 50),
        "progress": f"{images}/{images}",
        "resourcesDuration": {
            "cpu": 7200 + pod,
            "memory": 43_200 + pod,
            profile.gpu.resource: 1800 + pod,
        },
        "inputs": {"parameters": [run, shard]},
    }


def _node_outputs(name: str, node_id: str) -> Json:
    log = {"name": "main-logs", "s3": {"key": f"{name}/{node_id}/main.log"}}
    return {"exitCode": "0", "artifacts": [log]}


def _node_id(name: str, node_name: str) -> str:
    return f"{name}-{_digits(node_name)}"


def _digits(text: str) -> str:
    """Ten digits that follow from a text, as the numbers in Argo's ids do."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    number = int(digest, 16)
    return str(number)[-10:]


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
