"""A job's work once more: resubmitted after a failure, or as a retry of what ended badly."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.client import resubmit, stop, submit
from imagekiln.workflows.objects import Json, object_metadata
from tests.workflows.client.postcards import (
    CRON_WORKFLOW,
    NAMESPACE,
    child_workflow,
    postcards,
    scheduled_workflow,
)
from tests.workflows.memory import Memory

MAX_NAME_CHARS = 63  # that Argo takes
SCHEDULED_TIME = "workflows.argoproj.io/scheduled-time"


def metadata(argo: Memory, name: str) -> Json:
    return object_metadata(argo.get("Workflow", NAMESPACE, name))


def test_job_submitted_after_a_failure_is_resubmitted_under_another_name(argo: Memory) -> None:
    first = submit(postcards(), argo=argo)
    spec = dict(argo.spec(first.name))
    stop(first.name, NAMESPACE, argo)
    argo.end(first.name, "Failed")
    second = submit(postcards(), argo=argo)
    assert second.name == f"{first.name}-again-2"
    assert argo.spec(second.name) == spec, "without its shutdown"
    argo.end(second.name, "Succeeded")
    assert submit(postcards(), argo=argo).name == second.name


def test_workflow_that_is_stopping_is_not_taken_for_one_that_runs(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    argo.end(name, "Failed")
    again = resubmit(name, NAMESPACE, argo).name
    for attempt in (again, name):
        argo.end(attempt, "Running")
        stop(attempt, NAMESPACE, argo)
        for is_retry in (False, True):
            with pytest.raises(BadInput, match=f"`imagekiln stop {attempt} -n images` terminates"):
                submit(postcards(), argo=argo, retry=is_retry)
        with pytest.raises(BadInput, match=f"{attempt}: is stopping"):
            resubmit(name, NAMESPACE, argo)
        argo.end(attempt, "Failed")
        del argo.spec(attempt)["shutdown"]


def test_resubmitted_night_still_belongs_to_its_schedule(argo: Memory) -> None:
    night = scheduled_workflow(argo, "2025-11-26T01:30:00Z")
    owner = {"kind": "CronWorkflow", "name": CRON_WORKFLOW, "uid": "7", "controller": True}
    parent = {"kind": "Workflow", "name": "pipeline", "uid": "8"}
    metadata(argo, night)["ownerReferences"] = [owner | {"blockOwnerDeletion": True}, parent]
    again = metadata(argo, resubmit(night, NAMESPACE, argo).name)
    assert again["ownerReferences"] == [owner]
    assert again["labels"] == metadata(argo, night)["labels"]


def test_resubmitted_workflow_has_our_labels_and_none_of_argos_state(argo: Memory) -> None:
    first = submit(postcards(), argo=argo).name
    argo.end(first, "Failed")
    ours = dict(metadata(argo, first)["labels"])  # type: ignore[call-overload]
    metadata(argo, first)["labels"] = ours | {
        "workflows.argoproj.io/completed": "true",
        "workflows.argoproj.io/phase": "Failed",
    }
    second = resubmit(first, NAMESPACE, argo).name
    assert metadata(argo, second)["labels"] == ours


def test_nothing_is_resubmitted_while_a_child_workflow_still_runs(argo: Memory) -> None:
    first = submit(postcards(), argo=argo).name
    child = child_workflow(argo, first, 0, "Running")
    argo.end(first, "Failed")
    with pytest.raises(BadInput, match=f"{child}: is still running"):
        resubmit(first, NAMESPACE, argo)
    with pytest.raises(BadInput, match=f"{child}: is still running"):
        submit(postcards(), argo=argo)
    argo.end(child, "Failed")
    resubmit(first, NAMESPACE, argo)


def test_resubmitted_workflow_of_a_schedule_keeps_its_date_and_a_name_that_argo_takes(
    argo: Memory,
) -> None:
    annotations = {SCHEDULED_TIME: "2026-11-21T01:30:00Z"}
    names = [f"imagekiln-{'n' * 40}-17000000{number}0" for number in (1, 2)]
    for name in names:
        about: Json = {"name": name, "namespace": NAMESPACE, "annotations": annotations}
        argo.create({"kind": "Workflow", "metadata": about, "spec": {}})
        argo.end(name, "Failed")
    second = [resubmit(name, NAMESPACE, argo).name for name in names]
    argo.end(second[0], "Failed")
    third = resubmit(second[0], NAMESPACE, argo).name
    assert len({*second, third}) == 3
    assert third.removesuffix("3") == second[0].removesuffix("2")
    for name in (*second, third):
        assert metadata(argo, name)["annotations"] == annotations
        assert len(name) <= MAX_NAME_CHARS


def test_retry_is_the_same_job_under_a_name_of_its_own(argo: Memory) -> None:
    first = submit(postcards(), argo=argo)
    argo.end(first.name, "Failed")
    retry = submit(postcards(), argo=argo, retry=True)
    assert retry.name == f"{first.name}-r1"
    assert argo.arguments(retry.name) == argo.arguments(first.name) | {"retry": "true"}


def test_retry_submitted_twice_is_one_workflow_until_it_has_ended(argo: Memory) -> None:
    first = submit(postcards(), argo=argo, retry=True)
    assert submit(postcards(), argo=argo, retry=True).name == first.name
    for number, phase in ((2, "Succeeded"), (3, "Failed")):
        argo.end(argo.workflows()[-1], phase)
        assert submit(postcards(), argo=argo, retry=True).name.endswith(f"-r{number}")
    assert len(argo.workflows()) == 3


def test_nothing_is_retried_while_a_resubmission_of_the_job_runs(argo: Memory) -> None:
    argo.end(submit(postcards(), argo=argo).name, "Failed")
    second = submit(postcards(), argo=argo).name
    submit(postcards(), "2025-11-21", "UTC", argo)  # another run
    with pytest.raises(BadInput, match=f"{second}: is still running"):
        submit(postcards(), argo=argo, retry=True)
    argo.end(second, "Failed")
    assert submit(postcards(), argo=argo, retry=True).name.endswith("-r1")
