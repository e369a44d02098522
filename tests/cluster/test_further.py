"""More shards than a workflow holds: further workflows make them, and the first waits for each."""

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import get_status, resubmit, stop
from imagekiln.workflows.client.status import has_ended
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.child_workflows import NOOP_TEMPLATE, PARENT_LABEL
from imagekiln.workflows.templates.workflow_template import build_workflow_template, template_name
from tests.cluster import jobs, kube
from tests.cluster.ending import ended

IN_ONE = 3


def begun(argo: ArgoApi) -> tuple[str, str]:
    """The name of a workflow whose shards do not fit in one, and its run."""
    profile = load_profile("test").model_copy(update={"name": "few"})
    argo.apply(build_workflow_template(profile, kube.NAMESPACE, max_pods=IN_ONE))
    wanted = jobs.job(shard={"images": 2}, device="cpu")
    planned = make_plan(wanted)
    shards = len(planned.plan.shards)
    assert shards > IN_ONE
    given = {"run": planned.uri, "pods": shards, "workflows": -(-shards // IN_ONE)}
    given |= {
        "parallelism": 2,
        "priority": 3,
        "priority_class": "",
        "gpu-image": profile.generate.image,
    }
    name = f"further-{wanted.run_id}"
    parameters = [{"name": key, "value": str(value)} for key, value in given.items()]
    made: Json = {
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
    argo.create(made)
    return name, planned.uri


def parts(name: str, argo: ArgoApi) -> list[Json]:
    """The further workflows of one."""
    return argo.list_objects("Workflow", kube.NAMESPACE, f"{PARENT_LABEL}={name}")


def test_shards_that_do_not_fit_are_made_by_further_workflows(argo: ArgoApi) -> None:
    name, run = begun(argo)
    found = ended(name, argo)
    assert (found.phase, found.failures) == ("Succeeded", ())
    assert {kube.at(each, "spec", "priority") for each in parts(name, argo)} == {3}
    assert get_status(name, kube.NAMESPACE, argo).pods.done == len(
        load_plan(open_store(run)).shards
    )
    assert aggregate(run).ok == len(jobs.TEXTS)


def test_what_is_stopped_stops_with_its_further_workflows_and_goes_on_when_resubmitted(
    argo: ArgoApi,
) -> None:
    name, run = begun(argo)
    kube.until(
        240,
        "a pod of a further workflow",
        lambda: [each for part in parts(name, argo) for each in _pods(part)],
    )
    stop(name, kube.NAMESPACE, argo)
    assert ended(name, argo).phase == "Failed"
    kube.until(
        240, "the end of its parts", lambda: all(has_ended(each) for each in parts(name, argo))
    )
    before = jobs.written(run)
    assert len(before) < len(load_plan(open_store(run)).shards), "it was stopped too late to tell"
    again = ended(resubmit(name, kube.NAMESPACE, argo).name, argo)
    assert (again.phase, again.failures) == ("Succeeded", ())
    assert aggregate(run).ok == len(jobs.TEXTS)
    after = jobs.written(run)
    assert {key: after[key] for key in before} == before, "what was there was written again"


def _pods(workflow: Json) -> list[kube.Object]:
    return kube.pods(kube.name(workflow), "generate")
