"""A submitted job gives the dataset that the same job gives on one machine."""

import json
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.maintain.verify import verify
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import register_template, submit
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow import build_event_binding, job_parameter
from tests.cluster import jobs, kube
from tests.cluster.shell import shell
from tests.cluster.waiting import submit_with_template, wait_for_success


@pytest.fixture(scope="module")
def text() -> str:
    """The prompts of every job here."""
    return jobs.prompts()


@pytest.fixture(scope="module")
def expected(text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one machine makes of them."""
    return jobs.image_hashes(jobs.run_here(jobs.job(prompts=text), tmp_path_factory.mktemp("here")))


def check_run(run: str, expected: dict[str, str]) -> None:
    """The run is whole, and its bytes are those of one machine."""
    assert verify(run).ok == len(expected)
    assert jobs.image_hashes(run) == expected


def test_from_python(argo: ArgoApi, text: str, expected: dict[str, str]) -> None:
    job = jobs.job(prompts=text)
    workflow = submit(job, argo=argo)
    check_run(wait_for_success(workflow.name, argo), expected)
    assert submit(job, argo=argo).name == workflow.name, "submitted twice, it ran twice"


def test_one_pod_at_a_time(argo: ArgoApi, text: str, expected: dict[str, str]) -> None:
    # Argo's controller has exited on an exit handler with two tasks that may run at once.
    cluster = {"namespace": kube.NAMESPACE, "profile": "test", "parallelism": 1}
    workflow = submit(jobs.job(prompts=text, cluster=cluster), argo=argo)
    check_run(wait_for_success(workflow.name, argo), expected)
    nodes = kube.get_field(kube.get("workflow", workflow.name), "status", "nodes")
    assert isinstance(nodes, dict)
    steps = {node["templateName"] for node in nodes.values() if node["type"] == "Pod"}
    assert {"plan", "generate", "aggregate", "publish-report"} <= steps


def test_from_the_shell(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    job = jobs.job(prompts=text)
    (tmp_path / "job.yaml").write_text(job_parameter(job))
    done = shell("submit", str(tmp_path / "job.yaml"), "--watch", "--format", "json")
    assert done.returncode == 0, done.stderr
    _, _, last = done.stdout.strip().rpartition("\n}\n")
    check_run(json.loads(last)["run"], expected)


def test_image_that_a_job_names_replaces_that_of_the_template(argo: ArgoApi, text: str) -> None:
    other = "localhost/imagekiln-other:dev"  # on no node: the pod is looked at, and never runs
    cluster = {"namespace": kube.NAMESPACE, "profile": "test", "cpu_image": other}
    name = submit_with_template(jobs.job(prompts=text, cluster=cluster), argo)

    def find_images() -> object:
        pods = kube.pods(name, "plan")
        return kube.get_field(pods[0], "spec", "containers", 1, "image") if pods else None

    try:
        assert kube.wait_until(300, f"the plan pod of {name}", find_images) == other
    finally:
        argo.delete("Workflow", kube.NAMESPACE, name)


def test_by_the_form_of_argos_page(
    argo: ArgoApi, server: ArgoServer, text: str, expected: dict[str, str]
) -> None:
    register_template(jobs.job(), argo)
    body: Json = {
        "resourceKind": "WorkflowTemplate",
        "resourceName": "imagekiln-test",
        "submitOptions": {"parameters": [f"job={job_parameter(jobs.job(prompts=text))}"]},
    }
    workflow = server.connection.request(
        "POST", f"api/v1/workflows/{kube.NAMESPACE}/submit", body=body
    )
    check_run(wait_for_success(kube.name(workflow), argo), expected)


def test_by_an_event(
    argo: ArgoApi, server: ArgoServer, text: str, expected: dict[str, str]
) -> None:
    job = jobs.job(prompts=text)
    register_template(job, argo)
    argo.apply(build_event_binding(load_profile("test"), kube.NAMESPACE))
    body: Json = {
        "job": job.model_dump(mode="json", exclude_defaults=True),
        "request": job.run_id,
    }
    path = f"api/v1/events/{kube.NAMESPACE}/imagekiln-test"
    server.connection.request("POST", path, body=body)
    names = kube.wait_until(30, "a workflow of the event", lambda: _of_event(str(job.run_id)))
    with pytest.raises(TryAgain, match="already exists"):
        server.connection.request("POST", path, body=body)
    check_run(wait_for_success(names[0], argo), expected)


def _of_event(request: str) -> list[str]:
    return [name for name in map(kube.name, kube.items("workflows")) if request in name]
