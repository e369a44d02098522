"""More shards than a workflow holds: further workflows make them, and the first waits for each."""

import pytest

from imagekiln.steps.aggregate import aggregate
from imagekiln.steps.planning import make_plan
from imagekiln.workflows import client, further, gpu_profiles, templates
from imagekiln.workflows.argo import Argo
from imagekiln.workflows.connection import Json
from tests.cluster import jobs, kube

IN_ONE = 3


def test_shards_that_do_not_fit_are_made_by_further_workflows(argo: Argo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(further, "MOST_PODS", IN_ONE)
    profile = gpu_profiles.load("test").model_copy(update={"name": "few"})
    template = templates.workflow_template(profile, kube.NAMESPACE)
    argo.apply(template)
    wanted = jobs.job(shard={"images": 2}, device="cpu")
    planned = make_plan(wanted)
    shards = len(planned.plan.shards)
    assert shards > IN_ONE
    given = {"run": planned.uri, "pods": shards, "workflows": -(-shards // IN_ONE)}
    given |= {"parallelism": 2, "priority": 3, "priority_class": "", "gpu-image": profile.generate.image}
    name = f"further-{wanted.run_id}"
    parameters = [{"name": key, "value": str(value)} for key, value in given.items()]
    made: Json = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name, "namespace": kube.NAMESPACE},
        "spec": {
            "entrypoint": "further",
            "onExit": further.NOTHING,
            "workflowTemplateRef": {"name": templates.name(profile)},
            "arguments": {"parameters": parameters},
        },
    }
    argo.create(made)
    status = client.wait(name, kube.NAMESPACE, 240, argo, every=1)
    assert (status.phase, status.failures) == ("Succeeded", ())
    parts = argo.find("Workflow", kube.NAMESPACE, f"{further.PART_OF}={name}")
    assert {kube.at(each, "spec", "priority") for each in parts} == {3}
    assert client.state(name, kube.NAMESPACE, argo).pods.done == shards
    assert aggregate(planned.uri).ok == len(jobs.TEXTS)
