"""A job on a cluster, from Python: what is started when, and what goes on where."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.workflows.client.client import (
    apply,
    list_workflows,
    resubmit,
    result,
    stop,
    submit,
    wait,
)
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.client.schedules import backfill, resume, schedule, suspend
from imagekiln.workflows.client.status import WorkflowStatus
from imagekiln.workflows.objects import Json, object_metadata
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow import build_cron_workflow
from tests.workflows.memory import Memory

NAMESPACE = "images"


@pytest.fixture
def argo() -> Memory:
    return Memory()


def job(**changes: object) -> Job:
    values: dict[str, object] = {
        "name": "postcards",
        "prompts": "s3://prompts/*.parquet",
        "output": "s3://datasets",
        "model": {"id": "bundled:shapes"},
        "cluster": {"namespace": NAMESPACE, "profile": "gpu"},
    }
    return validate_job(values | changes)


def workflows(argo: Memory) -> list[str]:
    return [name for kind, _, name in argo.objects if kind == "Workflow"]


def test_submitting_registers_the_template_first(argo: Memory) -> None:
    submit(job(), argo=argo)
    assert [kind for kind, _, _ in argo.objects] == ["WorkflowTemplate", "Workflow"]


def test_template_that_somebody_has_changed_by_hand_is_left_alone(argo: Memory) -> None:
    submit(job(), argo=argo)
    template = argo.get("WorkflowTemplate", NAMESPACE, "imagekiln-gpu")
    template["spec"] = {"mine": True}
    submit(job(name="others"), argo=argo)
    assert template["spec"] == {"mine": True}
    apply(job(), argo)
    assert argo.get("WorkflowTemplate", NAMESPACE, "imagekiln-gpu")["spec"] != {"mine": True}


def test_profile_that_was_changed_is_not_run_as_it_was_before(argo: Memory, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    wanted = job(cluster={"namespace": NAMESPACE, "profile": str(profile)})
    profile.write_text("description: one GPU\ngpu: {count: 1}\n")
    submit(wanted, argo=argo)
    profile.write_text("description: two GPUs\ngpu: {count: 2}\n")
    with pytest.raises(BadInput, match="imagekiln apply JOB"):
        submit(wanted, argo=argo)
    apply(wanted, argo)
    submit(wanted, argo=argo)


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_job_submitted_twice_runs_once(argo: Memory, phase: str) -> None:
    first = submit(job(), argo=argo)
    argo.end(first.name, phase)
    assert submit(job(), argo=argo).name == first.name
    assert workflows(argo) == [first.name]


def test_job_submitted_after_a_failure_goes_on_under_another_name(argo: Memory) -> None:
    first = submit(job(), argo=argo)
    argo.end(first.name, "Failed")
    second = submit(job(), argo=argo)
    assert second.name == f"{first.name}-again-2"
    spec = {
        name: argo.get("Workflow", NAMESPACE, name)["spec"] for name in (first.name, second.name)
    }
    assert spec[first.name] == spec[second.name]
    argo.end(second.name, "Succeeded")
    assert submit(job(), argo=argo).name == second.name


def test_other_dates_are_other_workflows(argo: Memory) -> None:
    names = {submit(job(), day, "UTC", argo).name for day in ("2026-11-20", "2026-11-21")}
    assert len(names) == 2


def test_stopped_workflow_goes_on_when_it_is_resubmitted(argo: Memory) -> None:
    first = submit(job(), argo=argo).name
    stop(first, NAMESPACE, argo)
    argo.end(first, "Failed")
    again = argo.get("Workflow", NAMESPACE, resubmit(first, NAMESPACE, argo).name)
    assert "shutdown" not in again["spec"]  # type: ignore[operator]


def test_resubmitted_workflow_has_our_labels_and_none_of_argos_state(argo: Memory) -> None:
    first = submit(job(), argo=argo).name
    argo.end(first, "Failed")
    about = object_metadata(argo.get("Workflow", NAMESPACE, first))
    ours = dict(about["labels"])  # type: ignore[call-overload]
    about["labels"] = ours | {
        "workflows.argoproj.io/completed": "true",
        "workflows.argoproj.io/phase": "Failed",
    }
    again = resubmit(first, NAMESPACE, argo).name
    assert object_metadata(argo.get("Workflow", NAMESPACE, again))["labels"] == ours


def fired(argo: Memory, at: str, phase: str = "Failed") -> str:
    """A workflow that Argo made of the job's schedule."""
    schedule(job(), "30 1 * * *", argo=argo)
    spec = argo.get("CronWorkflow", NAMESPACE, "imagekiln-postcards")["spec"]
    labels = spec["workflowMetadata"]["labels"]  # type: ignore[index]
    about = {
        "name": f"imagekiln-postcards-{datetime.fromisoformat(at).timestamp():.0f}",
        "namespace": NAMESPACE,
        "labels": labels | {"workflows.argoproj.io/cron-workflow": "imagekiln-postcards"},
        "annotations": {"workflows.argoproj.io/scheduled-time": at},
    }
    argo.create({"kind": "Workflow", "metadata": about, "spec": spec["workflowSpec"]})  # type: ignore[index]
    argo.end(str(about["name"]), phase)
    return str(about["name"])


def further(argo: Memory, name: str, number: int, phase: str) -> str:
    """A workflow that another one has made."""
    about = {
        "name": f"{name}-{number}",
        "namespace": NAMESPACE,
        "labels": {"imagekiln/part-of": name},
    }
    argo.create({"kind": "Workflow", "metadata": about, "spec": {}})
    argo.end(f"{name}-{number}", phase)
    return f"{name}-{number}"


def stopped(argo: Memory) -> list[str]:
    return [
        name
        for name in workflows(argo)
        if "shutdown" in argo.get("Workflow", NAMESPACE, name)["spec"]
    ]  # type: ignore[operator]


def test_stopping_ends_the_further_workflows_too_that_still_run(argo: Memory) -> None:
    first = submit(job(), argo=argo).name
    _, part = (
        further(argo, first, number, phase) for number, phase in enumerate(("Succeeded", "Running"))
    )
    stop(first, NAMESPACE, argo)
    assert stopped(argo) == [first, part]


def test_further_workflow_of_one_that_has_ended_is_stopped_by_that_ones_name(argo: Memory) -> None:
    first = submit(job(), argo=argo).name
    part = further(argo, first, 0, "Running")
    argo.end(first, "Failed")
    stop(first, NAMESPACE, argo)
    assert stopped(argo) == [part], "Argo's server refuses to stop what has ended"


def test_nothing_goes_on_while_a_further_workflow_still_makes_its_shards(argo: Memory) -> None:
    first = submit(job(), argo=argo).name
    part = further(argo, first, 0, "Running")
    argo.end(first, "Failed")
    with pytest.raises(BadInput, match=f"{part}: is still running"):
        resubmit(first, NAMESPACE, argo)
    with pytest.raises(BadInput, match=f"{part}: is still running"):
        submit(job(), argo=argo)
    argo.end(part, "Failed")
    resubmit(first, NAMESPACE, argo)


def test_resubmitted_firing_keeps_its_date_and_a_name_that_argo_takes(argo: Memory) -> None:
    scheduled = "workflows.argoproj.io/scheduled-time"
    names = [f"imagekiln-{'n' * 40}-17000000{number}0" for number in (1, 2)]
    for name in names:
        about = {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {scheduled: "2026-11-21T01:30:00Z"},
        }
        argo.create({"kind": "Workflow", "metadata": about, "spec": {}})
        argo.end(name, "Failed")
    again = [resubmit(name, NAMESPACE, argo).name for name in names]
    argo.end(again[0], "Failed")
    third = resubmit(again[0], NAMESPACE, argo).name
    assert len({*again, third}) == 3
    assert third.removesuffix("3") == again[0].removesuffix("2")
    for name in (*again, third):
        assert object_metadata(argo.get("Workflow", NAMESPACE, name))["annotations"] == {
            scheduled: "2026-11-21T01:30:00Z"
        }
        assert len(name) <= 63


@pytest.mark.parametrize(
    ("prompts", "date"), [("s3://p/{date}/*.parquet", ""), ("s3://p/*.parquet", "tomorrow")]
)
def test_job_whose_date_no_pod_could_read_is_not_started(
    argo: Memory, prompts: str, date: str
) -> None:
    with pytest.raises(BadInput, match="date"):
        submit(job(prompts=prompts), date, argo=argo)
    assert not argo.objects


def test_running_workflow_is_not_resubmitted(argo: Memory) -> None:
    first = submit(job(), argo=argo).name
    with pytest.raises(BadInput, match="still running"):
        resubmit(first, NAMESPACE, argo)


def given(argo: Memory, name: str) -> dict[str, str]:
    spec = argo.get("Workflow", NAMESPACE, name)["spec"]
    return {each["name"]: each["value"] for each in spec["arguments"]["parameters"]}  # type: ignore[index]


def test_retry_is_the_same_job_under_a_name_of_its_own(argo: Memory) -> None:
    first = submit(job(), argo=argo)
    argo.end(first.name, "Failed")
    again = submit(job(), argo=argo, retry=True)
    assert again.name == f"{first.name}-r1"
    assert given(argo, again.name) == given(argo, first.name) | {"retry": "true"}


def test_retry_asked_for_twice_is_one_until_it_has_ended(argo: Memory) -> None:
    first = submit(job(), argo=argo, retry=True)
    assert submit(job(), argo=argo, retry=True).name == first.name
    for number, phase in ((2, "Succeeded"), (3, "Failed")):
        argo.end(workflows(argo)[-1], phase)
        assert submit(job(), argo=argo, retry=True).name.endswith(f"-r{number}")
    assert len(workflows(argo)) == 3


def test_nothing_is_retried_while_the_job_itself_runs(argo: Memory) -> None:
    first = submit(job(), argo=argo)
    with pytest.raises(BadInput, match=f"{first.name}: is still running"):
        submit(job(), argo=argo, retry=True)
    assert workflows(argo) == [first.name]


def test_nothing_is_retried_while_a_workflow_that_goes_on_with_the_job_runs(argo: Memory) -> None:
    argo.end(submit(job(), argo=argo).name, "Failed")
    second = submit(job(), argo=argo).name
    submit(job(), "2025-11-21", "UTC", argo)  # another run
    with pytest.raises(BadInput, match=f"{second}: is still running"):
        submit(job(), argo=argo, retry=True)
    argo.end(second, "Failed")
    assert submit(job(), argo=argo, retry=True).name.endswith("-r1")


def test_nights_are_retried_by_their_days_once_they_have_ended(argo: Memory) -> None:
    night = date(2025, 11, 26)
    firing = fired(argo, "2025-11-26T02:30:00+01:00", "Running")
    argo.apply(build_cron_workflow(job(), load_profile("gpu"), ("30 2 * * *",), "Europe/Berlin"))
    argo.objects["Workflow", NAMESPACE, firing]["spec"]["arguments"]["parameters"][1]["value"] = (
        "Europe/Berlin"  # type: ignore[index]
    )
    with pytest.raises(BadInput, match=f"{firing}: is still running"):
        backfill(job(), night, night, argo, retry=True)
    argo.end(firing, "Failed")
    (begun,) = backfill(job(), night, night, argo, retry=True)
    assert given(argo, begun.name)["logical-date"] == "2025-11-26T01:30:00+00:00"
    assert given(argo, begun.name)["retry"] == "true"


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_backfill_gives_back_the_firing_that_runs_or_was_well(argo: Memory, phase: str) -> None:
    firing = fired(argo, "2025-11-26T01:30:00Z", phase)
    night = date(2025, 11, 26)
    assert [each.name for each in backfill(job(), night, night, argo)] == [firing]
    argo.end(firing, "Failed")
    assert backfill(job(), night, night, argo)[0].name != firing


def test_retries_of_two_dates_are_two(argo: Memory) -> None:
    names = {
        submit(job(), day, "UTC", argo, retry=True).name for day in ("2026-11-20", "2026-11-21")
    }
    assert len(names) == 2


def test_names_of_retries_leave_room_for_what_argo_adds(argo: Memory) -> None:
    first = submit(job(name="n" * 40), argo=argo, retry=True).name
    argo.end(first, "Failed")
    assert len(resubmit(first, NAMESPACE, argo).name) <= 63


def test_waiting_ends_with_the_workflow_or_with_the_time(argo: Memory) -> None:
    name = submit(job(), argo=argo).name
    with pytest.raises(TryAgain, match="still Pending"):
        wait(name, NAMESPACE, 0.01, argo, every=0.01)
    argo.end(name, "Succeeded")
    assert wait(name, NAMESPACE, 5, argo, every=0.01).phase == "Succeeded"


def test_result_of_a_running_workflow_is_to_be_asked_for_again(argo: Memory) -> None:
    name = submit(job(), argo=argo).name
    with pytest.raises(TryAgain):
        result(name, NAMESPACE, argo)


def test_waiting_ends_with_the_time_where_the_api_is_away(
    argo: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Json:
        raise TryAgain("the API: does not answer.")

    monkeypatch.setattr(argo, "get", away)
    with pytest.raises(TryAgain, match="does not answer"):
        result("postcards", NAMESPACE, argo)
    with pytest.raises(TryAgain, match="does not answer"):
        wait("postcards", NAMESPACE, 0.05, argo, every=0.01)


def test_workflow_whose_nodes_are_in_argos_database_is_listed_without_counts(argo: Memory) -> None:
    name = submit(job(), argo=argo).name
    argo.end(name, "Running", offloadNodeStatusVersion="fnv:1")
    assert [(each.phase, each.images) for each in list_workflows(NAMESPACE, argo)] == [
        ("Running", None)
    ]


def test_runs_are_ours_newest_first_without_further_ones(argo: Memory) -> None:
    names = [submit(job(name=name), argo=argo).name for name in ("one", "two")]
    argo.end(names[0], "Running", startedAt="2026-11-21T01:00:00Z")
    argo.end(names[1], "Running", startedAt="2026-11-21T02:00:00Z")
    labels = {"app.kubernetes.io/part-of": "imagekiln", "imagekiln/part-of": names[0]}
    argo.create(
        {
            "kind": "Workflow",
            "metadata": {"name": "child", "namespace": NAMESPACE, "labels": labels},
        }
    )
    argo.create({"kind": "Workflow", "metadata": {"name": "a-stranger's", "namespace": NAMESPACE}})
    assert [each.name for each in list_workflows(NAMESPACE, argo)] == names[::-1]


def shard_node(name: str, number: int) -> dict[str, object]:
    parameters = [{"name": "shard", "value": str(number)}]
    return {
        "id": f"{name}-{number}",
        "type": "Pod",
        "templateName": "generate",
        "inputs": {"parameters": parameters},
    }


def test_logs_are_of_all_pods_or_of_one_shards(argo: Memory) -> None:
    name = submit(job(), argo=argo).name
    argo.end(name, "Running", nodes={str(number): shard_node(name, number) for number in (0, 1)})
    argo.logged = {f"{name}-generate-1": ['time=1 level=INFO msg="exited" argo=true', "drawn"]}
    everything = list(logs(name, NAMESPACE, argo=argo))
    assert everything[0].startswith("generate 0: no log: ")
    assert everything[1] == "generate 1: drawn"
    assert list(logs(name, NAMESPACE, 1, argo)) == ["drawn"]
    with pytest.raises(Missing, match="no pod of shard 7"):
        list(logs(name, NAMESPACE, 7, argo))


def test_logs_that_are_followed_are_of_pods_too_that_come_later(argo: Memory) -> None:
    name = submit(job(), argo=argo).name
    argo.logged = {f"{name}-generate-{number}": [f"drawn {number}"] for number in (0, 1)}
    followed = logs(name, NAMESPACE, argo=argo, follow=True, every=0.01)
    argo.end(name, "Running", nodes={"0": shard_node(name, 0) | {"phase": "Running"}})
    assert next(followed) == "generate 0: drawn 0"
    nodes = {str(number): shard_node(name, number) | {"phase": "Succeeded"} for number in (0, 1)}
    argo.end(name, "Succeeded", nodes=nodes)
    assert list(followed) == ["generate 1: drawn 1"]


def dates(argo: Memory, found: list[WorkflowStatus]) -> list[str]:
    return [given(argo, each.name)["logical-date"] for each in found]


def test_backfill_submits_what_the_schedule_would_have_fired(argo: Memory) -> None:
    schedule(job(), "30 1 * * *", "Europe/Berlin", argo)
    found = backfill(job(), date(2025, 11, 1), date(2025, 11, 2), argo)
    assert dates(argo, found) == ["2025-11-01T00:30:00+00:00", "2025-11-02T00:30:00+00:00"]


def test_backfill_knows_every_line_of_a_schedule(argo: Memory) -> None:
    lines = ("30 1 * * *", "30 1,13 * * 6")
    argo.apply(build_cron_workflow(job(), load_profile("gpu"), lines, "UTC"))
    apply(job(), argo)
    found = backfill(job(), date(2025, 11, 1), date(2025, 11, 2), argo)
    assert [each[:16] for each in dates(argo, found)] == [
        "2025-11-01T01:30",
        "2025-11-01T13:30",
        "2025-11-02T01:30",
    ]


def test_backfill_makes_nothing_before_its_time(argo: Memory) -> None:
    today = datetime.now(UTC).date()
    schedule(job(), "0 0 * * *", "UTC", argo)
    found = backfill(job(), today, today + timedelta(days=3), argo)
    assert dates(argo, found) == [f"{today}T00:00:00+00:00"]
    with pytest.raises(BadInput, match="has not fired"):
        backfill(job(), today + timedelta(days=1), today + timedelta(days=3), argo)


def test_backfill_of_more_than_a_cluster_takes_at_once_is_refused(argo: Memory) -> None:
    schedule(job(), "* * * * *", "UTC", argo)
    with pytest.raises(BadInput, match="Name fewer days"):
        backfill(job(), date(2025, 1, 1), date(2025, 1, 2), argo)
    assert workflows(argo) == []


def test_schedule_whose_every_firing_would_be_one_run_is_refused(argo: Memory) -> None:
    with pytest.raises(BadInput, match="only the first makes anything"):
        schedule(job(run_id="mine"), "30 1 * * *", argo=argo)


def test_firings_that_look_for_what_is_new_in_one_table_do_not_overlap(argo: Memory) -> None:
    for changes, expected in (
        ({}, "Allow"),
        ({"skip_existing": True, "prompts": "s3://prompts/{date}/*.parquet"}, "Allow"),
        ({"skip_existing": True}, "Forbid"),
    ):
        name = schedule(job(**changes), "30 1 * * *", argo=argo)
        assert argo.get("CronWorkflow", NAMESPACE, name)["spec"]["concurrencyPolicy"] == expected  # type: ignore[index]


def test_backfill_without_a_schedule_is_refused(argo: Memory) -> None:
    with pytest.raises(Missing):
        backfill(job(), date(2025, 11, 1), date(2025, 11, 2), argo)


def test_schedule_rests_and_goes_on(argo: Memory) -> None:
    name = schedule(job(), "30 1 * * *", argo=argo)
    for asked, expected in ((suspend, True), (resume, False)):
        asked(name, NAMESPACE, argo)
        assert argo.get("CronWorkflow", NAMESPACE, name)["spec"]["suspend"] is expected  # type: ignore[index]
