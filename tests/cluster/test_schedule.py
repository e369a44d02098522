"""A job on a schedule makes each date once, whoever asks for it, and how often."""

from datetime import UTC, date, datetime

from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.keys import part_key
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import resubmit, submit
from imagekiln.workflows.client.schedules import backfill, create, delete, pause, resume
from imagekiln.workflows.objects import object_metadata
from tests.cluster import jobs, kube
from tests.cluster.waiting import wait_for_end, wait_for_firing, wait_for_success

DAYS = (date(2026, 3, 1), date(2026, 3, 2), date(2026, 3, 3))


def test_firing_makes_its_date_once(argo: ArgoApi) -> None:
    job = jobs.job(name=f"minutely-{datetime.now(UTC):%H%M%S}", run_id=None, shard={"images": 12})
    cron = create(job, ("* * * * *",), argo=argo)
    workflow = wait_for_firing(cron, argo)
    pause(cron, kube.NAMESPACE, argo)
    run = wait_for_success(workflow, argo)
    assert verify(run).ok == len(jobs.TEXTS)
    before = jobs.write_times(run)
    create(job, ("* * * * *",), argo=argo)
    assert (
        kube.get_field(argo.get("CronWorkflow", kube.NAMESPACE, cron), "spec", "suspend") is True
    ), "registering resumed it"

    fired = argo.get("Workflow", kube.NAMESPACE, workflow)
    at = object_metadata(fired)["annotations"]["workflows.argoproj.io/scheduled-time"]  # type: ignore[index]
    again = wait_for_end(submit(job, at, "UTC", argo).name, argo)
    assert (again.phase, again.run, again.pods.done) == ("Succeeded", run, 0), (
        "the same date made something again"
    )
    assert jobs.write_times(run) == before
    resume(cron, kube.NAMESPACE, argo)
    assert kube.get_field(argo.get("CronWorkflow", kube.NAMESPACE, cron), "spec", "suspend") in (
        False,
        None,
    )
    argo.delete("CronWorkflow", kube.NAMESPACE, cron)


def test_backfill_makes_each_date_of_its_own_prompts(argo: ArgoApi) -> None:
    for place, day in enumerate(DAYS):
        jobs.prompts(
            {"prompt": list(jobs.TEXTS[place : place + 2])}, f"nightly/{day}/prompts.parquet"
        )
    job = jobs.job(
        name="nightly",
        prompts=f"{jobs.BUCKET}/nightly/{{date}}/*.parquet",
        run_id=None,
        output=f"{jobs.BUCKET}/nightly-{datetime.now(UTC):%H%M%S}",
    )
    cron = create(job, ("30 1 * * *",), "Europe/Berlin", argo)
    pause(cron, kube.NAMESPACE, argo)
    names = [each.status.name for each in backfill(job, DAYS[0], DAYS[-1], argo)]
    runs = [wait_for_success(name, argo) for name in names]
    assert [run.rpartition("/")[2] for run in runs] == [
        "nightly-20260301T003000Z", "nightly-20260302T003000Z", "nightly-20260303T003000Z",
    ]  # fmt: skip
    for place, run in enumerate(runs):
        assert sorted(jobs.manifest(run)["prompt"].to_pylist()) == sorted(
            jobs.TEXTS[place : place + 2]
        )
    assert [each.status.name for each in backfill(job, DAYS[0], DAYS[-1], argo)] == names
    argo.delete("CronWorkflow", kube.NAMESPACE, cron)


def test_a_night_with_failed_images_makes_them_again(argo: ArgoApi) -> None:
    job = jobs.job(
        name="lossy", run_id=None, output=f"{jobs.BUCKET}/lossy-{datetime.now(UTC):%H%M%S}"
    )
    cron = create(job, ("30 1 * * *",), "Europe/Berlin", argo)
    pause(cron, kube.NAMESPACE, argo)
    (first,) = backfill(job, DAYS[0], DAYS[0], argo)
    run = wait_for_success(first.status.name, argo)
    whole, before = jobs.image_hashes(run), jobs.write_times(run)
    jobs.aggregate_anew(run, lost=(), failed=[part_key(0, 1)])
    (again,) = backfill(job, DAYS[0], DAYS[0], argo, retry=True)
    assert wait_for_success(again.status.name, argo) == f"{run}/retry-1"
    assert jobs.image_hashes(run) == whole
    assert len(jobs.write_times(run)) == len(before) + 1
    argo.delete("CronWorkflow", kube.NAMESPACE, cron)


def test_a_resubmitted_night_is_of_its_schedule_and_outlives_it(server: ArgoServer) -> None:
    job = jobs.job(name=f"tonight-{datetime.now(UTC):%H%M%S}", run_id=None)
    cron = create(job, ("* * * * *",), argo=server)
    workflow = wait_for_firing(cron, server)
    pause(cron, kube.NAMESPACE, server)
    server.stop(kube.NAMESPACE, workflow)
    assert wait_for_end(workflow, server).phase == "Failed"
    fired_at = state_of(cron, server)["lastScheduledTime"]
    create(job, ("* * * * *",), argo=server)
    assert state_of(cron, server)["lastScheduledTime"] == fired_at

    again = resubmit(workflow, kube.NAMESPACE, server).name
    kube.wait_until(60, "it as one that runs", lambda: again in active_workflows(cron, server))
    delete(cron, kube.NAMESPACE, server)
    run = wait_for_success(again, server)
    assert verify(run).ok == len(jobs.TEXTS)


def state_of(cron: str, argo: ArgoApi) -> kube.Object:
    """What Argo keeps of a schedule."""
    state: kube.Object = argo.get("CronWorkflow", kube.NAMESPACE, cron)["status"]  # type: ignore[assignment]
    return state


def active_workflows(cron: str, argo: ArgoApi) -> list[object]:
    """The names of the workflows of a schedule that run."""
    active = state_of(cron, argo).get("active") or []
    return [kube.get_field(each, "name") for each in active]  # type: ignore[attr-defined]
