"""A batch between the steps of somebody else's workflow."""

from uuid import uuid4

from hera.workflows import DAG, Parameter, Suspend, Task, Workflow

from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import register_template
from imagekiln.workflows.templates.batch import batch_task
from imagekiln.workflows.templates.workflow_template import as_object
from tests.cluster import jobs, kube
from tests.cluster.waiting import wait_for_end


def test_batch_is_one_task_of_a_workflow_and_the_next_task_gets_its_run(argo: ArgoApi) -> None:
    job = jobs.job(device="cpu")
    register_template(job, argo)
    name = f"pipeline-{uuid4().hex[:8]}"

    # The next task has no pod: what it was given stands in the workflow's status.
    take = Suspend(name="take", duration="0", inputs=_parameters("run", "images"))
    batch = batch_task(job, "images")
    last = Task(
        name="last",
        template=take,
        arguments=[batch.get_parameter("run"), batch.get_parameter("images")],
    )
    batch >> last
    pipeline = Workflow(
        name=name,
        namespace=kube.NAMESPACE,
        entrypoint="main",
        templates=[DAG(name="main", tasks=[batch, last]), take],
    )
    argo.create(as_object(pipeline.build()))

    status = wait_for_end(name, argo)
    assert (status.phase, status.failures) == ("Succeeded", ())
    assert wait_for_end(f"{name}-images", argo).phase == "Succeeded"
    inputs = _inputs(name, "last")
    assert inputs["images"] == str(len(jobs.TEXTS))
    assert inputs["run"].endswith(str(job.run_id))
    assert verify(inputs["run"]).ok == len(jobs.TEXTS)


def test_workflow_whose_batch_fails_fails_at_that_task(argo: ArgoApi) -> None:
    job = jobs.job(device="cpu")
    register_template(job, argo)
    name = f"pipeline-{uuid4().hex[:8]}"
    batch = batch_task(job, "images", settings=("defaults.steps=0",))
    pipeline = Workflow(
        name=name,
        namespace=kube.NAMESPACE,
        entrypoint="main",
        templates=[DAG(name="main", tasks=[batch])],
    )
    argo.create(as_object(pipeline.build()))

    assert wait_for_end(name, argo).phase == "Failed"
    assert wait_for_end(f"{name}-images", argo).phase == "Failed"


def _parameters(*names: str) -> list[Parameter]:
    return [Parameter(name=name) for name in names]


def _inputs(workflow: str, task: str) -> dict[str, str]:
    """What a task of the workflow was given."""
    nodes = kube.get_field(kube.get("workflow", workflow), "status", "nodes")
    assert isinstance(nodes, dict)
    (node,) = (node for node in nodes.values() if node["displayName"] == task)
    return {item["name"]: item["value"] for item in node["inputs"]["parameters"]}
