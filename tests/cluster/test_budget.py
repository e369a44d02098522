"""A budget on the cluster stops a run without a retry, and a larger one resumes it."""

from uuid import uuid4

from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import submit
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_success


def test_a_run_without_budget_left_is_not_retried_and_resumes_with_more(argo: ArgoApi) -> None:
    # In an output of its own: by what earlier runs measured, the job would be refused as a whole.
    job = jobs.job(output=f"{jobs.BUCKET}/budget-{uuid4().hex[:8]}", price_per_hour=2.0)
    limited = job.model_copy(update={"budget": job.budget.model_copy(update={"gpu_hours": 1e-9})})
    first = wait_for_end(submit_with_template(limited, argo), argo)
    assert first.phase == "Failed"
    shards = [failure for failure in first.failures if failure.step == "generate"]
    assert shards
    assert {failure.exit_code for failure in shards} == {3}
    assert {failure.attempts for failure in shards} == {1}
    assert first.run is not None
    output, _, run_id = first.run.rpartition("/")
    (stopped,) = [run for run in list_runs(output) if run.run_id == run_id]
    assert stopped.state != "succeeded", "each pod stops after the part at hand"
    assert stopped.device_hours
    assert stopped.cost

    raised = job.model_copy(update={"budget": job.budget.model_copy(update={"gpu_hours": 10.0})})
    resumed = submit(raised, argo=argo)
    assert wait_for_success(resumed.name, argo) == first.run
    assert jobs.manifest(first.run)["status"].to_pylist() == ["ok"] * len(jobs.TEXTS)
    nodes = kube.get_field(kube.get("workflow", resumed.name), "status", "nodes")
    assert isinstance(nodes, dict)
    steps = [node["templateName"] for node in nodes.values() if node["type"] == "Pod"]
    assert steps.count("generate") == len(shards)
