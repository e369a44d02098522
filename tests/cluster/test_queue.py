"""Pods that wait in a queue: what Kueue's webhook does to a pod is done here without Kueue."""

from pathlib import Path
from time import sleep

import yaml

from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.cluster import jobs, kube
from tests.cluster.waiting import wait_for_success

GATE = "kueue.x-k8s.io/admission"
DEADLINE_SECONDS = 150
PROFILE = f"""\
like: test
description: One pod at a time, admitted by hand
queue: {{name: imagekiln}}
generate: {{hours: {DEADLINE_SECONDS / 3600}}}
"""


def test_pod_waits_longer_for_its_admission_than_it_may_run(tmp_path: Path, argo: ArgoApi) -> None:
    path = tmp_path / "queued.yaml"
    path.write_text(PROFILE)
    cluster = {"namespace": kube.NAMESPACE, "profile": str(path)}
    argo.apply(gated_template(path))
    name = submit(jobs.job(shard={"images": 12}, cluster=cluster), argo=argo).name

    pod = kube.wait_until(300, f"a gated pod of {name}", lambda: find_gated_pod(name))
    assert kube.get_field(pod, "metadata", "labels", "kueue.x-k8s.io/queue-name") == "imagekiln"
    sleep(DEADLINE_SECONDS + 15)
    assert find_gated_pod(name) is not None, "waiting has used up the time of the pod"

    change = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    kube.kubectl("patch", "pod", kube.name(pod), "--type", "json", "--patch", change)
    assert len(jobs.image_hashes(wait_for_success(name, argo))) == 12


def gated_template(profile: Path) -> dict[str, object]:
    """The profile's template, whose GPU pods have the gate that Kueue's webhook gives them."""
    template = build_workflow_template(load_profile(str(profile)), kube.NAMESPACE)
    spec = template["spec"]
    assert isinstance(spec, dict)
    (generate,) = (part for part in spec["templates"] if part["name"] == "generate")
    gates = yaml.safe_dump({"schedulingGates": [{"name": GATE}]})
    generate["podSpecPatch"] = f"{gates}{generate['podSpecPatch']}"
    return template


def find_gated_pod(workflow: str) -> kube.Object | None:
    """The pod of generate, while Kubernetes does not schedule it."""
    for pod in kube.pods(workflow, "generate"):
        if kube.get_field(pod, "spec", "schedulingGates", 0, "name") == GATE:
            return pod
    return None
