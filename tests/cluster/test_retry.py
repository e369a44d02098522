"""What ended badly on the cluster is made again there, and nothing else is."""

from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, part_key
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.objects import Json
from imagekiln.workflows.templates.workflow import job_parameter
from tests.cluster import jobs, kube
from tests.cluster.ending import ended, submitted, succeeded

LOST = (part_key(0, 1), part_key(1, 2))  # four images of twelve


def losing_parts(wanted: Job, argo: ArgoApi) -> tuple[str, dict[str, str]]:
    """A run that was whole, without some of its parts, as `aggregate` on this machine finds it; and its images."""
    run = succeeded(submitted(wanted, argo), argo)
    whole = jobs.made(run)
    store = open_store(run)
    for key in LOST:
        store.remove(key)
    jobs.incomplete(run)
    return run, whole


def test_only_what_is_lost_is_made_again(argo: ArgoApi) -> None:
    wanted = jobs.job()
    run, whole = losing_parts(wanted, argo)
    before, rows = jobs.written(run), jobs.manifest(run).to_pylist()
    begun = submit(wanted, argo=argo, retry=True)
    assert submit(wanted, argo=argo, retry=True).name == begun.name, "asked for twice, it ran twice"
    assert succeeded(begun.name, argo) == f"{run}/retry-1"
    assert jobs.made(run) == whole
    assert jobs.written(run) == before, "parts of the run itself were written again"
    after = jobs.manifest(run).to_pylist()
    kept = [place for place, row in enumerate(rows) if row["status"] == "ok"]
    assert len(kept) == 8
    assert [after[place] for place in kept] == [rows[place] for place in kept]
    assert len(jobs.written(f"{run}/retry-1")) == 2
    assert verify(run).ok == 12
    assert open_store(run).exists(SUCCESS_KEY)


def test_retry_with_nothing_left_succeeds_and_makes_nothing(argo: ArgoApi) -> None:
    wanted = jobs.job()
    run = succeeded(submitted(wanted, argo), argo)
    begun = submit(wanted, argo=argo, retry=True)
    assert succeeded(begun.name, argo) == run
    assert not kube.pods(begun.name, "generate")
    assert not open_store(f"{run}/retry-1").exists(PLAN_KEY)


def test_images_that_fail_again_end_each_round_with_3(argo: ArgoApi) -> None:
    samplers: list[object] = [
        "flow_euler" if place == 2 else "default" for place in range(len(jobs.TEXTS))
    ]
    wanted = jobs.job(prompts=jobs.prompts({"prompt": list(jobs.TEXTS), "sampler": samplers}))
    first = ended(submitted(wanted, argo), argo)
    assert first.phase == "Failed"
    for number in (1, 2):
        status = ended(submit(wanted, argo=argo, retry=True).name, argo)
        (failure,) = status.failures
        assert (status.phase, failure.step, failure.exit_code) == ("Failed", "aggregate", 3)
        assert status.run == f"{first.run}/retry-{number}"
        assert "1 of 12 images are not ok" in failure.message
        assert load_plan(open_store(str(status.run))).counts.images == 1


def test_by_the_form_of_argos_page(argo: ArgoApi, server: ArgoServer) -> None:
    wanted = jobs.job()
    run, whole = losing_parts(wanted, argo)
    body: Json = {
        "resourceKind": "WorkflowTemplate",
        "resourceName": "imagekiln-test",
        "submitOptions": {"parameters": [f"job={job_parameter(wanted)}", "retry=true"]},
    }
    made = server.connection.request("POST", f"api/v1/workflows/{kube.NAMESPACE}/submit", body=body)
    assert succeeded(kube.name(made), argo) == f"{run}/retry-1"
    assert jobs.made(run) == whole
