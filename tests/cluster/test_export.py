"""A job's own export, made by a task of the workflow, and brought up to date after a takedown."""

from uuid import uuid4

from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_success
from tests.exports import images_by_id


def test_export_is_a_task_of_the_workflow_and_follows_a_takedown(argo: ArgoApi) -> None:
    target = f"{jobs.BUCKET}/exports/{uuid4().hex[:12]}"
    job = jobs.job(output=f"{jobs.BUCKET}/exported/{uuid4().hex[:12]}", export=[{"to": target}])
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)
    nodes = kube.get_field(kube.get("workflow", name), "status", "nodes")
    assert isinstance(nodes, dict)
    assert "export" in {node["displayName"].split("(")[0] for node in nodes.values()}
    held = jobs.image_hashes(run)
    assert set(images_by_id(target)) == set(held)

    gone = min(held)
    forget(job.output, ForgetSelection(ids=(gone,)), [target], remove=True)
    assert set(images_by_id(target)) == set(held) - {gone}
