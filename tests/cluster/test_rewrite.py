"""Prompts rewritten by pods of the workflow, with a tiny model that they have from a ConfigMap."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.rewrite.step import rewrite
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status, submit
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_job_template
from tests.cluster import jobs, kube
from tests.cluster.waiting import wait_for_end, wait_for_pod, wait_for_success
from tests.jobs import image_rows
from tests.language_models import language_model

CONFIG_MAP = "test-writer"
FOLDER = "/opt/writer"  # where the pods have the model
PROMPTS = 600  # in three parts; the numbers are no words of the model
SUBJECTS = ("red cat", "blue cat", "red dog", "blue dog", "red house", "blue sea")


def rewriting_job(model: str) -> Job:
    """A job of hundreds of prompts, which become a few texts, and images of those."""
    texts = [f"{SUBJECTS[number % len(SUBJECTS)]} {number}" for number in range(PROMPTS)]
    settings = {"model": {"id": model, "dtype": "float32"}, "instruction": "Describe {prompt} :"}
    cluster = {"namespace": kube.NAMESPACE, "profile": "test"}
    return jobs.job(
        prompts=jobs.prompts({"prompt": [*texts]}),
        output=f"{jobs.BUCKET}/rewritten/{uuid4().hex}",  # where nothing is rewritten yet
        rewrite=settings,
        cluster=cluster,
    )


@pytest.fixture
def _model() -> Iterator[None]:
    """The tiny model in a ConfigMap."""
    files = {path.name: path.read_bytes() for path in language_model("gpt2").iterdir()}
    content = {name: base64.b64encode(data).decode() for name, data in files.items()}
    metadata = {"name": CONFIG_MAP, "namespace": kube.NAMESPACE}
    kube.apply(
        [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": content}]
    )
    yield
    kube.kubectl("delete", "configmap", CONFIG_MAP)


def apply_with_model(job: Job, argo: ArgoApi) -> None:
    """Register the job's template, with a patch that mounts the model, as kustomize would put in.

    It keeps its digest, by which `submit` knows it.
    """
    template = build_job_template(job, load_profile(job.cluster.profile))
    spec = cast("dict[str, list[dict[str, object]]]", template["spec"])
    (step,) = (part for part in spec["templates"] if part["name"] == "rewrite")
    volumes = cast("list[object]", step.setdefault("volumes", []))
    volumes.append({"name": "writer", "configMap": {"name": CONFIG_MAP}})
    container = cast("dict[str, list[object]]", step["container"])
    mounts = container.setdefault("volumeMounts", [])
    mounts.append({"name": "writer", "mountPath": FOLDER, "readOnly": True})
    argo.apply(template)


@pytest.mark.usefixtures("_model")
def test_pods_rewrite_prompts_before_planning_and_one_that_is_lost_is_retried(
    argo: ArgoApi, tmp_path: Path
) -> None:
    job = rewriting_job(FOLDER)
    apply_with_model(job, argo)
    name = submit(job, argo=argo).name
    pod = wait_for_pod(name, "rewrite")
    assert get_status(name, kube.NAMESPACE, argo).stage == "rewrite"
    kube.kubectl("delete", "pod", kube.name(pod), "--grace-period", "0", "--force")

    run = wait_for_success(name, argo)
    assert verify(run).ok == len(_written_prompts(job, tmp_path))
    assert "rewrite" in _retried_steps(name)
    plan = load_plan(open_store(run))
    assert plan.rewrite is not None
    assert plan.rewrite.prompts == PROMPTS
    texts = open_store(f"{job.output}/{plan.rewrite.folder}/texts").list_folder("")
    assert len(list(texts)) == 3
    rows = jobs.manifest(run).to_pylist()
    drawn = {row["prompt_original"]: row["prompt"] for row in rows}
    assert drawn == _written_prompts(job, tmp_path)


def test_cause_of_a_workflow_without_the_model_is_the_sentence_of_the_pod(argo: ArgoApi) -> None:
    job = rewriting_job("/opt/nothing")
    argo.apply(build_job_template(job, load_profile(job.cluster.profile)))
    status = wait_for_end(submit(job, argo=argo).name, argo)
    assert status.phase == "Failed"
    assert {(failure.step, failure.exit_code) for failure in status.failures} == {("rewrite", 2)}
    assert (status.cause or "").startswith("rewrite: rewrite.model: /opt/nothing is not a folder.")


def _written_prompts(job: Job, folder: Path) -> dict[str, str]:
    """What this machine makes of the prompts, by those that become an image."""
    rewriting = job.model_dump()["rewrite"] | {
        "model": {"id": str(language_model("gpt2")), "dtype": "float32"}
    }
    changes = {"output": str(folder), "device": "cpu", "rewrite": rewriting}
    local = validate_job(job.model_dump() | changes)
    rewrite(local)
    rows = image_rows(make_plan(local)).to_pylist()
    return {row["prompt_original"]: row["prompt"] for row in rows}


def _retried_steps(workflow: str) -> list[str]:
    """The steps of a workflow's pods, each once, however often it was tried."""
    nodes = kube.get_field(kube.get("workflow", workflow), "status", "nodes")
    assert isinstance(nodes, dict)
    return [node["templateName"] for node in nodes.values() if node["type"] == "Retry"]
