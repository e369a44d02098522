"""A retry on the cluster makes again what ended badly, and nothing else."""

from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.run import open_run
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.objects import Json
from imagekiln.workflows.templates.workflow import job_parameter
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_success

PARTS = (part_key(0, 1), part_key(1, 2))  # four images of twelve


def test_failed_images_are_made_again_and_nothing_else(argo: ArgoApi) -> None:
    job = jobs.job()
    run = wait_for_success(submit_with_template(job, argo), argo)
    whole = jobs.image_hashes(run)
    jobs.aggregate_anew(run, lost=(), failed=PARTS)
    before, rows = jobs.write_times(run), jobs.manifest(run).to_pylist()
    retry = submit(job, argo=argo, retry=True)
    assert submit(job, argo=argo, retry=True).name == retry.name, "submitted twice, it ran twice"
    assert wait_for_success(retry.name, argo) == f"{run}/retry-1"
    assert jobs.image_hashes(run) == whole
    written = jobs.write_times(run)
    assert {key: written[key] for key in before} == before, "parts were written again"
    assert len(written) == len(before) + 2
    after = jobs.manifest(run).to_pylist()
    intact = [place for place, row in enumerate(rows) if row["status"] == "ok"]
    assert len(intact) == 8
    assert [after[place] for place in intact] == [rows[place] for place in intact]
    assert verify(run).ok == 12


def test_parts_that_are_missing_are_made_first_as_planned(argo: ArgoApi) -> None:
    job = jobs.job()
    run = wait_for_success(submit_with_template(job, argo), argo)
    whole, before = jobs.image_hashes(run), jobs.write_times(run)
    jobs.aggregate_anew(run, lost=PARTS)
    retry = submit(job, argo=argo, retry=True)
    assert wait_for_success(retry.name, argo) == run
    assert jobs.image_hashes(run) == whole
    assert set(jobs.write_times(run)) == set(before)


def test_retry_with_nothing_left_succeeds_and_makes_nothing(argo: ArgoApi) -> None:
    job = jobs.job()
    run = wait_for_success(submit_with_template(job, argo), argo)
    retry = submit(job, argo=argo, retry=True)
    assert wait_for_success(retry.name, argo) == run
    assert not kube.pods(retry.name, "generate")
    assert open_run(run).head.commit.retries == ()


def test_images_that_no_try_can_mend_end_a_retry_with_3_and_without_pods(argo: ArgoApi) -> None:
    samplers: list[object] = ["default"] * len(jobs.TEXTS)
    samplers[2] = "lcm"
    # LCM's scheduler takes its steps from 50: such a row is planned, and fails when it is drawn.
    steps: list[object] = [60 if sampler == "lcm" else 2 for sampler in samplers]
    texts: list[object] = [*jobs.TEXTS]
    prompts = jobs.prompts({"prompt": texts, "sampler": samplers, "steps": steps})
    job = jobs.job(prompts=prompts)
    first = wait_for_end(submit_with_template(job, argo), argo)
    assert first.phase == "Failed"
    retry = submit(job, argo=argo, retry=True)
    status = wait_for_end(retry.name, argo)
    (failure,) = status.failures
    assert (status.phase, failure.step, failure.exit_code) == ("Failed", "aggregate", 3)
    assert status.run == first.run
    assert "1 failed image cannot be fixed by trying again" in failure.message
    assert not kube.pods(retry.name, "generate")
    assert first.run is not None
    assert open_run(first.run).head.commit.retries == ()


def test_by_the_form_of_argos_page(argo: ArgoApi, server: ArgoServer) -> None:
    job = jobs.job()
    run = wait_for_success(submit_with_template(job, argo), argo)
    whole = jobs.image_hashes(run)
    jobs.aggregate_anew(run, lost=(), failed=PARTS)
    body: Json = {
        "resourceKind": "WorkflowTemplate",
        "resourceName": "imagekiln-test",
        "submitOptions": {"parameters": [f"job={job_parameter(job)}", "retry=true"]},
    }
    workflow = server.connection.request(
        "POST", f"api/v1/workflows/{kube.NAMESPACE}/submit", body=body
    )
    assert wait_for_success(kube.name(workflow), argo) == f"{run}/retry-1"
    assert jobs.image_hashes(run) == whole
