"""A job on a cluster: registered, submitted, watched, listed and stopped."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.workflows.client.client import (
    apply,
    await_template,
    get_status,
    stop,
    submit,
    watch,
    workflows,
)
from imagekiln.workflows.objects import Json, object_metadata
from tests.workflows.client.postcards import NAMESPACE, child_workflow, postcards
from tests.workflows.memory import Memory

TEMPLATE = "imagekiln-gpu"


def test_prompts_of_a_submitted_job_lie_under_its_output(argo: Memory, s3_bucket: str) -> None:
    listed = postcards(prompts={"texts": ["a red circle"]}, output=f"{s3_bucket}/images")
    submit(listed, argo=argo)
    (name,) = argo.workflows()
    assert "a red circle" not in str(argo.spec(name))
    assert f"prompts: {s3_bucket}/images/_prompts/" in str(argo.spec(name))
    submit(listed, argo=argo)
    assert argo.workflows() == [name]


def test_date_is_one_workflow_however_it_is_written(argo: Memory) -> None:
    dates = ("2025-11-26T01:30", "2025-11-26 01:30:00", "2025-11-26T00:30:00Z")
    names = {submit(postcards(), date, "Europe/Berlin", argo).name for date in dates}
    assert len(names) == 1
    assert submit(postcards(), dates[0], "UTC", argo).name not in names


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["postcards-by-an-older-one", "imagekiln-postcards-1764120600"])
def test_job_that_runs_under_another_name_is_not_started_a_second_time(
    argo: Memory, name: str
) -> None:
    own = submit(postcards(), "2025-11-26T01:30", "UTC", argo).name
    workflow = argo.objects.pop(("Workflow", NAMESPACE, own))
    argo.create(workflow | {"metadata": object_metadata(workflow) | {"name": name}})

    assert submit(postcards(), "2025-11-26T01:30Z", "UTC", argo).name == name
    assert argo.workflows() == [name]
    for other in (postcards(name="others"), postcards(output="s3://other/images")):
        assert submit(other, "2025-11-26T01:30", "UTC", argo).name != name
    argo.end(name, "Succeeded")
    assert submit(postcards(), "2025-11-26T01:30", "UTC", argo).name == own


def test_template_that_argo_s_server_does_not_know_yet_is_waited_for() -> None:
    answers = [Missing('workflowtemplates.argoproj.io "imagekiln-gpu" not found.')] * 4

    def start() -> str:
        if answers:
            raise answers.pop()
        return "started"

    assert await_template(start, is_new=True, pauses=(0, 0, 0, 0)) == "started"


def test_profile_that_was_changed_is_not_run_with_its_old_template(
    argo: Memory, tmp_path: Path
) -> None:
    profile = tmp_path / "mine.yaml"
    job = postcards(cluster={"namespace": NAMESPACE, "profile": str(profile)})
    profile.write_text("description: one GPU\ngpu: {count: 1}\n")
    submit(job, argo=argo)
    assert [kind for kind, _, _ in argo.objects] == ["WorkflowTemplate", "Workflow"]
    profile.write_text("description: two GPUs\ngpu: {count: 2}\n")
    with pytest.raises(BadInput, match="imagekiln apply JOB"):
        submit(job, argo=argo)
    apply(job, argo)
    submit(job, argo=argo)


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_job_submitted_twice_runs_once(argo: Memory, phase: str) -> None:
    first = submit(postcards(), argo=argo)
    argo.end(first.name, phase)
    assert submit(postcards(), argo=argo).name == first.name
    assert argo.workflows() == [first.name]


@pytest.mark.parametrize(
    ("prompts", "date"), [("s3://p/{date}/*.parquet", ""), ("s3://p/*.parquet", "tomorrow")]
)
def test_job_whose_date_no_pod_could_read_is_not_started(
    argo: Memory, prompts: str, date: str
) -> None:
    with pytest.raises(BadInput, match="date"):
        submit(postcards(prompts=prompts), date, argo=argo)
    assert not argo.objects


def test_workflow_that_is_stopping_is_terminated_by_a_second_stop(argo: Memory) -> None:
    parent = submit(postcards(), argo=argo).name
    child = child_workflow(argo, parent, 0, "Running")
    assert stop(parent, NAMESPACE, argo) == "stopping"
    assert [argo.spec(name)["shutdown"] for name in (parent, child)] == ["Stop", "Stop"]
    argo.end(child, "Failed")
    assert stop(parent, NAMESPACE, argo) == "terminated"
    assert [argo.spec(name)["shutdown"] for name in (parent, child)] == ["Terminate", "Stop"]
    argo.end(parent, "Failed")
    assert stop(parent, NAMESPACE, argo) == "ended"


def test_stop_that_broke_off_is_finished_by_the_next(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    child = child_workflow(argo, name, 1, "Running")
    argo.stop(NAMESPACE, name)
    assert stop(name, NAMESPACE, argo) == "stopping"
    assert {argo.spec(member)["shutdown"] for member in (name, child)} == {"Stop"}
    assert stop(name, NAMESPACE, argo) == "terminated"


class Unsteady(Memory):
    """A cluster whose API answers only while `is_up`."""

    is_up = True

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """The object, while the API answers."""
        if not self.is_up:
            raise TryAgain("the API: did not answer.")
        return super().get(kind, namespace, name)


def test_watching_says_once_that_the_api_is_away_and_goes_on_when_it_is_back() -> None:
    argo = Unsteady()
    name = submit(postcards(), argo=argo).name
    sentences: list[str] = []

    def report(sentence: str) -> None:
        sentences.append(sentence)
        argo.is_up = True
        argo.end(name, "Succeeded")

    statuses = watch(name, NAMESPACE, argo, every=0.01, report=report)
    assert next(statuses).phase == "Pending"
    argo.is_up = False
    with pytest.raises(TryAgain, match="did not answer"):  # the first question must be answered
        next(watch(name, NAMESPACE, argo))
    assert [status.phase for status in statuses] == ["Succeeded"]
    (sentence,) = sentences
    assert sentence.startswith("No answer from the cluster; the workflow continues.")


def test_workflow_whose_nodes_are_in_argos_database_is_listed_without_counts(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    argo.end(name, "Running", offloadNodeStatusVersion="fnv:1")
    statuses = workflows(NAMESPACE, argo)
    assert [(status.phase, status.images) for status in statuses] == [("Running", None)]


def test_workflows_are_listed_newest_first_without_children_and_strangers(argo: Memory) -> None:
    names = [submit(postcards(name=name), argo=argo).name for name in ("one", "two")]
    argo.end(names[0], "Running", startedAt="2026-11-21T01:00:00Z")
    argo.end(names[1], "Running", startedAt="2026-11-21T02:00:00Z")
    labels = {"app.kubernetes.io/part-of": "imagekiln", "imagekiln.dev/part-of": names[0]}
    child: Json = {"name": "child", "namespace": NAMESPACE, "labels": labels}
    argo.create({"kind": "Workflow", "metadata": child})
    argo.create({"kind": "Workflow", "metadata": {"name": "stranger", "namespace": NAMESPACE}})
    assert [status.name for status in workflows(NAMESPACE, argo)] == names[::-1]


def waiting_workflow(argo: Memory) -> str:
    """A workflow whose pods wait, and say no more than that."""
    name = submit(postcards(), argo=argo).name
    node = {"type": "Pod", "templateName": "generate", "phase": "Pending"}
    node["message"] = "ContainerCreating"
    nodes = {f"{name}-{place}": {**node, "id": f"{name}-{place}"} for place in range(3)}
    argo.end(name, "Running", nodes=nodes)
    return name


def test_events_of_one_pod_say_what_all_wait_for_where_argo_does_not(argo: Memory) -> None:
    name = waiting_workflow(argo)
    pod = f"{name}-generate-0"
    mount: Json = {
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'claim "models" not found',
    }
    scheduled: Json = {"type": "Normal", "reason": "Scheduled", "message": "to gpu-0"}
    first = {**scheduled, "eventTime": "2026-11-21T01:00:08.5Z"}
    argo.events = {pod: [{**mount, "lastTimestamp": "2026-11-21T01:00:09Z"}, first]}
    (wait,) = get_status(name, NAMESPACE, argo).waits
    assert (wait.pods, wait.cause) == (3, "a volume is not ready")
    assert wait.message == 'FailedMount: claim "models" not found'
    assert argo.event_requests == [pod]

    argo.events[pod].append({**scheduled, "lastTimestamp": "2026-11-21T01:00:10Z"})
    (wait,) = get_status(name, NAMESPACE, argo).waits
    assert wait.cause == "it is being started", "what was the matter before is over"


def test_wait_stays_unexplained_without_events(argo: Memory) -> None:
    name = waiting_workflow(argo)
    without: tuple[dict[str, list[Json]] | None, ...] = ({}, None)
    for events in without:
        argo.events = events
        (wait,) = get_status(name, NAMESPACE, argo).waits
        assert wait.cause == "it is being started"
