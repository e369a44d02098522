"""A batch as one task of somebody else's workflow."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hera.workflows import DAG, Parameter, Workflow

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ClusterSettings, Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.batch import BatchTask, batch_task
from imagekiln.workflows.templates.pod import node_affinity
from imagekiln.workflows.templates.security import ARGO_RESOURCES, pod_security_context
from imagekiln.workflows.templates.workflow import job_parameter
from imagekiln.workflows.templates.workflow_template import (
    WORKFLOW_PARAMETERS,
    as_object,
    build_workflow_template,
)
from tests.workflows.argo_pods import RESTRICTED, containers, pods
from tests.workflows.argo_schemas import mistakes
from tests.workflows.argo_variables import fill_in_template
from tests.workflows.goldens import JOB, NAMESPACE, ODD, example_pipeline

FILE = Path(__file__).parents[3] / "workflows/cluster/base/batch.yaml"
TEMPLATE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
BATCH = TEMPLATE["spec"]["templates"][0]
CLUSTER_INPUTS = {"name", "template", "parallelism", "priority-class"}


def test_docs_example_fits_argos_schema_and_refers_to_the_shipped_template() -> None:
    pipeline: dict[str, Any] = example_pipeline()
    assert mistakes(pipeline) == []
    tasks = pipeline["spec"]["templates"][0]["dag"]["tasks"]
    reference = next(task["templateRef"] for task in tasks if "templateRef" in task)
    assert reference == {"name": TEMPLATE["metadata"]["name"], "template": BATCH["name"]}


def test_shipped_template_takes_what_the_profiles_template_does_and_no_task_gives_more() -> None:
    inputs = {parameter["name"] for parameter in BATCH["inputs"]["parameters"]}
    assert inputs == CLUSTER_INPUTS | set(WORKFLOW_PARAMETERS)
    everything = batch_task(
        JOB, run_id="a", date="b", timezone="UTC", settings=("device=cpu",), retry=True
    )
    assert {*_arguments(everything), "job-uri"} == inputs


def test_batch_of_a_job_is_what_submit_would_run() -> None:
    arguments = _arguments(batch_task(JOB, "images", date="2026-11-21", settings=("a=1", "b=2")))
    assert arguments == {
        "name": "images",
        "template": "imagekiln-gpu",
        "parallelism": "8",
        "priority-class": "imagekiln-batch",
        "job": job_parameter(JOB),
        "logical-date": "2026-11-21",
        "settings": "a=1\nb=2",
    }


def test_batch_of_a_job_file_can_name_what_an_earlier_task_outputs() -> None:
    uri = Parameter(name="uri", value="{{tasks.write.outputs.parameters.uri}}")
    task = batch_task(uri, cluster=ClusterSettings(profile="h100"))
    arguments = _arguments(task)
    assert arguments["job-uri"] == "{{tasks.write.outputs.parameters.uri}}"
    assert arguments["template"] == "imagekiln-h100"
    assert "job" not in arguments


def test_outputs_of_a_batch_are_those_that_its_workflow_has() -> None:
    outputs = {item["name"]: item["valueFrom"] for item in BATCH["outputs"]["parameters"]}
    template: dict[str, Any] = build_workflow_template(load_profile("gpu"), NAMESPACE)
    steps = [step.get("outputs", {}) for step in template["spec"]["templates"]]
    parameters = [item for step in steps for item in step.get("parameters", [])]
    shared = {item["globalName"] for item in parameters if "globalName" in item}
    assert set(outputs) == {"run", "images", "ok"} <= shared
    for name, source in outputs.items():
        path = f'{{.status.outputs.parameters[?(@.name=="{name}")].value}}'
        assert source == {"jsonPath": path}
        value = batch_task(JOB, "images").get_parameter(name).value
        assert value == f"{{{{tasks.images.outputs.parameters.{name}}}}}"


@pytest.mark.parametrize("text", [job_parameter(ODD), 's3://b/a "b": {c}\'s\n\\ #é', "1e3", ""])
def test_workflow_of_a_batch_reads_as_it_is_meant_whatever_a_text_holds(text: str) -> None:
    inputs = dict.fromkeys(WORKFLOW_PARAMETERS, text)
    inputs |= {"name": "images", "template": "imagekiln-gpu", "priority-class": ""}
    inputs |= {"parallelism": "8"}
    filled = fill_in_template(BATCH, {"workflow.name": "nightly"}, inputs)
    workflow = yaml.safe_load(filled["resource"]["manifest"])

    assert mistakes(workflow) == []
    assert workflow["metadata"]["name"] == "nightly-images"
    spec = workflow["spec"]
    assert spec["workflowTemplateRef"] == {"name": "imagekiln-gpu"}
    assert (spec["parallelism"], spec["podPriorityClassName"]) == (8, "")
    parameters = {item["name"]: item["value"] for item in spec["arguments"]["parameters"]}
    assert parameters == dict.fromkeys(WORKFLOW_PARAMETERS, text)


def test_pod_of_a_batch_is_restricted_whatever_the_workflow_around_it_says() -> None:
    caller = {"serviceAccountName": "somebody", "templates": [BATCH]}
    ((_, pod),) = pods({"spec": caller})
    assert pod["securityContext"] == pod_security_context().model_dump(
        by_alias=True, exclude_none=True
    )
    assert pod["serviceAccountName"] == "imagekiln-further"
    assert set(containers(pod)) == {"init", "main"}
    for container in containers(pod).values():
        assert container["securityContext"] == RESTRICTED
        assert container["resources"] == ARGO_RESOURCES


def test_pod_of_a_batch_is_placed_as_the_steps_are_and_retried_as_what_awaits_a_child() -> None:
    affinity = node_affinity(load_profile("gpu").steps)
    assert affinity is not None
    assert BATCH["affinity"] == as_object(affinity)
    template: dict[str, Any] = build_workflow_template(load_profile("gpu"), NAMESPACE)
    steps = {step["name"]: step for step in template["spec"]["templates"]}
    # The whole strategy: expression, limit and backoff.
    assert BATCH["retryStrategy"] == steps["further-one"]["retryStrategy"]


def test_job_that_pods_cannot_read_is_refused() -> None:
    with pytest.raises(BadInput, match="machine"):
        batch_task(Job.model_validate(JOB.model_dump() | {"output": "/data"}))


def test_images_of_a_batch_are_its_profiles() -> None:
    with pytest.raises(BadInput, match="profile of your own"):
        batch_task("s3://jobs/a.yaml", cluster=ClusterSettings(gpu_image="other:1"))


def _arguments(task: BatchTask) -> dict[str, str]:
    workflow = Workflow(name="a", templates=[DAG(name="main", tasks=[task])])
    built: dict[str, Any] = as_object(workflow.build())
    (rendered,) = built["spec"]["templates"][0]["dag"]["tasks"]
    return {item["name"]: item["value"] for item in rendered["arguments"]["parameters"]}
