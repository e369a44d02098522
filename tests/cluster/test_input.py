"""Bad input is reported where people look, and is not tried again."""

from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_success


def test_bad_input_is_told_at_once_and_not_tried_again(argo: ArgoApi) -> None:
    status = wait_for_end(
        submit_with_template(jobs.job(prompts=f"{jobs.BUCKET}/nothing/*.parquet"), argo), argo
    )
    assert status.phase == "Failed"
    (failure,) = status.failures
    assert (failure.step, failure.exit_code, failure.attempts) == ("plan", 2, 1)
    assert "nothing/*.parquet" in failure.message, "the reason is not in what Argo's page shows"


def test_poisoned_prompts_fail_alone_and_end_the_run_with_3(argo: ArgoApi) -> None:
    samplers: list[object] = ["default"] * len(jobs.TEXTS)
    samplers[2] = samplers[7] = "lcm"
    # LCM's scheduler takes its steps from 50: such a row is planned, and fails when it is drawn.
    steps: list[object] = [60 if sampler == "lcm" else 2 for sampler in samplers]
    texts: list[object] = [*jobs.TEXTS]
    poisoned = jobs.prompts({"prompt": texts, "sampler": samplers, "steps": steps})
    status = wait_for_end(submit_with_template(jobs.job(prompts=poisoned), argo), argo)
    (failure,) = status.failures
    assert (status.phase, failure.step, failure.exit_code, failure.attempts) == (
        "Failed",
        "aggregate",
        3,
        1,
    )
    assert "2 of 12 images are not ok" in failure.message
    assert status.run is not None
    rows = jobs.manifest(status.run)
    assert dict(zip(rows["input_row"].to_pylist(), rows["status"].to_pylist(), strict=True)) == {
        place: "failed" if place in (2, 7) else "ok" for place in range(len(jobs.TEXTS))
    }


def test_odd_texts_and_names_do_no_harm(argo: ArgoApi) -> None:
    odd = [
        "{{workflow.name}}",
        "{{=1+1}}",
        'it\'s "quoted" \\ $(id) `id` $HOME',
        "two\nlines\t;&|<>",
        "%s {0} \u202e☃ 'x",
    ]
    key = "odd {{inputs.parameters.run}} it's $(id) ☃.parquet"
    carried = [f"{{{{{place}}}}}" for place in range(len(odd))]
    uri = jobs.prompts({"prompt": list(odd), "te'xt {{x}}": list(carried)}, key)
    odd_job = jobs.job(
        prompts=uri,
        carry=["te'xt {{x}}"],
        defaults={"steps": 2, "negative_prompt": "{{workflow.uid}} '\"\n$(id)"},
    )
    rows = jobs.manifest(wait_for_success(submit_with_template(odd_job, argo), argo))
    assert rows["prompt"].to_pylist() == odd
    assert set(rows["negative_prompt"].to_pylist()) == {"{{workflow.uid}} '\"\n$(id)"}
    assert rows["te'xt {{x}}"].to_pylist() == carried
