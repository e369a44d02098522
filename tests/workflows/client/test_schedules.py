"""A job on a schedule: created, paused, resumed and backfilled."""

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import cast

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.cli.status import format_schedules
from imagekiln.workflows.client.schedules import (
    BackfilledRun,
    backfill,
    create,
    delete,
    list_schedules,
    pause,
)
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow import build_cron_workflow
from tests.workflows.client.postcards import CRON_WORKFLOW, NAMESPACE, postcards, scheduled_workflow
from tests.workflows.memory import Memory

NIGHT = date(2025, 11, 26)
WEEKEND = (date(2025, 11, 1), date(2025, 11, 2))


def logical_dates(argo: Memory, runs: Iterable[BackfilledRun]) -> list[str]:
    return [argo.arguments(run.status.name)["logical-date"] for run in runs]


def test_backfill_submits_what_the_schedule_would_have_fired(argo: Memory) -> None:
    create(postcards(), ("30 1 * * *", "30 1,13 * * 6"), "Europe/Berlin", argo)
    assert logical_dates(argo, backfill(postcards(), *WEEKEND, argo)) == [
        "2025-11-01T00:30:00+00:00",
        "2025-11-01T12:30:00+00:00",
        "2025-11-02T00:30:00+00:00",
    ]


def test_each_firing_rewrites_its_own_prompts(argo: Memory) -> None:
    job = postcards(rewrite={"model": {"id": "kiln/writer"}})
    create(job, ("30 1 * * *",), argo=argo)
    (template,) = (name for kind, _, name in argo.objects if kind == "WorkflowTemplate")
    spec = argo.spec(CRON_WORKFLOW, kind="CronWorkflow")
    workflow = cast("dict[str, dict[str, str]]", spec["workflowSpec"])
    assert template == "imagekiln-gpu-rewrite"
    assert workflow["workflowTemplateRef"] == {"name": template}


def test_backfill_starts_nothing_before_its_time(argo: Memory) -> None:
    today = datetime.now(UTC).date()
    in_three_days = today + timedelta(days=3)
    create(postcards(), ("0 0 * * *",), "UTC", argo)
    statuses = backfill(postcards(), today, in_three_days, argo)
    assert logical_dates(argo, statuses) == [f"{today}T00:00:00+00:00"]
    with pytest.raises(BadInput, match="has no past run time"):
        backfill(postcards(), today + timedelta(days=1), in_three_days, argo)


def test_backfill_of_more_than_a_cluster_takes_at_once_is_rejected(argo: Memory) -> None:
    create(postcards(), ("* * * * *",), "UTC", argo)
    with pytest.raises(BadInput, match="is before the first, 2025-11-26"):
        backfill(postcards(), NIGHT, WEEKEND[0], argo)
    with pytest.raises(BadInput, match="Choose fewer days"):
        backfill(postcards(), date(2025, 1, 1), date(2025, 1, 2), argo)
    assert argo.workflows() == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
def test_backfill_makes_no_night_again_that_the_schedule_made_at_another_time(
    argo: Memory, zone: str
) -> None:
    days = (NIGHT - timedelta(days=1), NIGHT)
    create(postcards(), ("30 1 * * *",), "UTC", argo)
    create(postcards(), ("30 1 * * *",), "UTC", argo)
    made = backfill(postcards(), *days, argo)
    create(postcards(), ("0 3 * * *",), zone, argo)
    for _ in range(2):  # the same times once more change nothing
        with pytest.raises(BadInput, match=r"has these times only since 20\d\d-"):
            backfill(postcards(), *days, argo)
        create(postcards(), ("0 3 * * *",), zone, argo)
    assert argo.workflows() == [run.status.name for run in made]


def test_backfill_of_what_is_new_in_one_table_is_a_submission(argo: Memory) -> None:
    job = postcards(skip_existing=True)
    create(job, ("30 1 * * *",), argo=argo)
    with pytest.raises(BadInput, match=r"makes what is new in one table.* `imagekiln submit JOB`"):
        backfill(job, NIGHT, NIGHT, argo)
    assert argo.workflows() == []
    assert len(backfill(job, NIGHT, NIGHT, argo, retry=True)) == 1


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_backfill_gives_the_workflow_of_the_schedule_unless_it_has_failed(
    argo: Memory, phase: str
) -> None:
    name = scheduled_workflow(argo, "2025-11-26T01:30:00Z", phase)
    assert [run.status.name for run in backfill(postcards(), NIGHT, NIGHT, argo)] == [name]
    argo.end(name, "Failed")
    assert backfill(postcards(), NIGHT, NIGHT, argo)[0].status.name != name


def test_backfill_retries_a_night_once_its_workflow_has_ended(argo: Memory) -> None:
    name = scheduled_workflow(argo, "2025-11-26T02:30:00+01:00", "Running")
    profile = load_profile("gpu")
    argo.apply(build_cron_workflow(postcards(), profile, ("30 2 * * *",), "Europe/Berlin"))
    parameters = argo.spec(name)["arguments"]["parameters"]  # type: ignore[index]
    parameters[1]["value"] = "Europe/Berlin"
    with pytest.raises(BadInput, match=f"{name}: is still running"):
        backfill(postcards(), NIGHT, NIGHT, argo, retry=True)
    argo.end(name, "Failed")
    (run,) = backfill(postcards(), NIGHT, NIGHT, argo, retry=True)
    arguments = argo.arguments(run.status.name)
    assert arguments["logical-date"] == "2025-11-26T01:30:00+00:00"
    assert arguments["retry"] == "true"


def test_schedule_whose_fire_times_would_all_be_one_run_is_rejected(argo: Memory) -> None:
    with pytest.raises(BadInput, match="run_id is 'mine'"):
        create(postcards(run_id="mine"), ("30 1 * * *",), argo=argo)


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({}, "Allow"),
        ({"skip_existing": True, "prompts": "s3://prompts/{date}/*.parquet"}, "Allow"),
        ({"skip_existing": True}, "Forbid"),
    ],
)
def test_workflows_that_look_for_new_rows_of_one_table_do_not_overlap(
    argo: Memory, changes: dict[str, object], policy: str
) -> None:
    name = create(postcards(**changes), ("30 1 * * *",), argo=argo)
    assert argo.spec(name, kind="CronWorkflow")["concurrencyPolicy"] == policy


def test_schedules_are_listed_and_deleted(argo: Memory) -> None:
    name = create(postcards(), ("30 1 * * *",), "Europe/Berlin", argo)
    (status,) = list_schedules(NAMESPACE, argo)
    assert re.search(r"  never       \S+T0[01]:30:00Z$", format_schedules([status], NAMESPACE))
    assert (status.crons, status.timezone, status.last_started) == (
        ("30 1 * * *",), "Europe/Berlin", None
    )  # fmt: skip
    pause(name, NAMESPACE, argo)
    active = [{"kind": "Workflow", "name": f"{name}-1"}]
    started = "2025-11-26T01:30:00Z"
    cron_workflow = argo.objects["CronWorkflow", NAMESPACE, name]
    cron_workflow["status"] = {"lastScheduledTime": started, "active": active}
    (status,) = list_schedules(NAMESPACE, argo)
    assert (status.suspended, status.next_start) == (True, None)
    assert (status.last_started, status.running) == (started, (f"{name}-1",))
    delete(name, NAMESPACE, argo)
    assert list_schedules(NAMESPACE, argo) == []
    with pytest.raises(Missing):
        delete(name, NAMESPACE, argo)
