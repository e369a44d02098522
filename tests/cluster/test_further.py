"""More shards than a workflow holds: child workflows make them, and the parent waits for each."""

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status, resubmit, stop
from imagekiln.workflows.client.status import has_ended
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates import dag
from imagekiln.workflows.templates.dag import NOOP_TEMPLATE, PARENT_LABEL
from imagekiln.workflows.templates.workflow_template import build_workflow_template, template_name
from tests.cluster import jobs, kube
from tests.cluster.waiting import wait_for_end

PODS_PER_WORKFLOW = 3
MOST_CHARS_OF_A_SCHEDULED_NAME = 61  # whose job has a name of 40: children add up to four


def plan_small_shards(**settings: object) -> str:
    """A run with more shards than a workflow holds; its URI."""
    planned = make_plan(jobs.job(shard={"images": 2}, device="cpu", **settings))
    assert len(planned.plan.shards) > PODS_PER_WORKFLOW
    return planned.uri


def start_parent(argo: ArgoApi, run: str, name_length: int = 0) -> str:
    """The name, at least so long, of a workflow that makes a run's shards by child workflows."""
    profile = load_profile("test").model_copy(update={"name": "few"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dag, "MAX_PODS", PODS_PER_WORKFLOW)
        template = build_workflow_template(profile, kube.NAMESPACE)
    argo.apply(template)
    plan = load_plan(open_store(run))
    shards = len(plan.shards)
    arguments = {"run": run, "pods": shards, "workflows": -(-shards // PODS_PER_WORKFLOW)}
    arguments |= {
        "parallelism": 2,
        "priority_class": "",
        "job_name": plan.job.name,
        "run_id": plan.run_id,
        "gpu-image": profile.generate.image,
    }
    name = f"further-{plan.run_id}".ljust(name_length, "x")
    parameters = [{"name": key, "value": str(value)} for key, value in arguments.items()]
    manifest: Json = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name, "namespace": kube.NAMESPACE},
        "spec": {
            "entrypoint": "further",
            "onExit": NOOP_TEMPLATE,
            "workflowTemplateRef": {"name": template_name(profile)},
            "arguments": {"parameters": parameters},
        },
    }
    argo.create(manifest)
    return name


def list_children(name: str, argo: ArgoApi) -> list[Json]:
    """The child workflows of a workflow."""
    return argo.list_objects("Workflow", kube.NAMESPACE, f"{PARENT_LABEL}={name}")


def test_shards_that_do_not_fit_are_made_by_child_workflows(argo: ArgoApi) -> None:
    run = plan_small_shards()
    name = start_parent(argo, run, name_length=MOST_CHARS_OF_A_SCHEDULED_NAME)
    status = wait_for_end(name, argo)
    assert (status.phase, status.failures) == ("Succeeded", ())
    assert get_status(name, kube.NAMESPACE, argo).pods.done == len(
        load_plan(open_store(run)).shards
    )
    assert aggregate(run).ok == len(jobs.TEXTS)


def test_stopping_stops_the_children_too_and_resubmitting_resumes(argo: ArgoApi) -> None:
    run = plan_small_shards()
    name = start_parent(argo, run)
    kube.wait_until(
        240,
        "a pod of a child workflow",
        lambda: [each for child in list_children(name, argo) for each in _pods(child)],
    )
    stop(name, kube.NAMESPACE, argo)
    assert wait_for_end(name, argo).phase == "Failed"
    kube.wait_until(
        240,
        "the end of its children",
        lambda: all(has_ended(each) for each in list_children(name, argo)),
    )
    before = jobs.write_times(run)
    assert len(before) < len(load_plan(open_store(run)).shards), (
        "stopped too late: nothing was left to resume"
    )
    resubmitted = wait_for_end(resubmit(name, kube.NAMESPACE, argo).name, argo)
    assert (resubmitted.phase, resubmitted.failures) == ("Succeeded", ())
    assert aggregate(run).ok == len(jobs.TEXTS)
    after = jobs.write_times(run)
    assert {key: after[key] for key in before} == before, "a finished part was written again"


def _pods(workflow: Json) -> list[kube.Object]:
    return kube.pods(kube.name(workflow), "generate")
