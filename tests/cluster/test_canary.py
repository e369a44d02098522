"""A sample is judged before other shards start, and pods that are done help with late shards."""

import json
import time
from collections.abc import Callable

from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.stats import elapsed_seconds
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.api import ArgoApi
from tests.cluster import jobs, kube
from tests.cluster.waiting import submit_with_template, wait_for_end, wait_for_pod, wait_for_success
from tests.runs import stats_of

CANARY = {"namespace": kube.NAMESPACE, "profile": "test", "canary": 4}


def _run_of(job: Job) -> str:
    return f"{job.output}/{job.run_id}"


def _generate_pods(workflow: str) -> list[dict[str, object]]:
    """The nodes of a workflow's pods that generate, in the order in which they started."""
    nodes = kube.get_field(kube.get("workflow", workflow), "status", "nodes")
    assert isinstance(nodes, dict)
    pods = [
        node
        for node in nodes.values()
        if node["type"] == "Pod" and node.get("templateName") == "generate"
    ]
    return sorted(pods, key=lambda node: str(node["startedAt"]))


def test_good_canary_is_the_first_shard_and_the_others_follow(argo: ArgoApi) -> None:
    job = jobs.job(cluster=CANARY)
    name = submit_with_template(job, argo)
    run = wait_for_success(name, argo)
    store = open_store(run)
    plan = load_plan(store)
    assert plan.sample_images == plan.shards[0].images == 4
    assert verify(run).ok == len(jobs.TEXTS)
    assert store.exists("preview/report/index.html")

    canary, *others = _generate_pods(name)
    assert len(others) == len(plan.shards) - 1
    assert all(str(pod["startedAt"]) >= str(canary["finishedAt"]) for pod in others)


def test_bad_canary_ends_the_workflow_with_what_failed_for_one_shard(argo: ArgoApi) -> None:
    # Every image of the tiny model has a lower contrast than that.
    gates = {"low_contrast": {"below": 0.5, "share": 0.0}}
    job = jobs.job(cluster=CANARY, gates=gates)
    name = submit_with_template(job, argo)
    status = wait_for_end(name, argo)
    assert status.phase == "Failed"
    (failure,) = status.failures
    assert failure.step == "generate"
    assert failure.attempts == 1
    assert "the first 4 images of 12 are not as the job asks" in failure.message
    assert "low_contrast" in failure.message
    assert len(_generate_pods(name)) == 1
    assert len(jobs.write_times(_run_of(job))) == 2  # its parts, of two images each


def test_bad_canary_can_be_overruled_and_nothing_is_made_twice(argo: ArgoApi) -> None:
    gates = {"low_contrast": {"below": 0.5, "share": 0.9}}
    settings: dict[str, object] = {"gates": gates, "run_id": jobs.job().run_id}
    uri = jobs.prompts()
    first = jobs.job(prompts=uri, cluster=CANARY, **settings)
    assert wait_for_end(submit_with_template(first, argo), argo).phase == "Failed"
    before = jobs.write_times(_run_of(first))

    plain = jobs.job(prompts=uri, **settings)
    name = submit_with_template(plain, argo)
    wait_for_end(name, argo)  # the whole run has too many marks too: that is not the point here
    after = jobs.write_times(_run_of(plain))
    assert {key: after[key] for key in before} == before
    assert len(after) > len(before)
    assert len(_generate_pods(name)) == len(load_plan(open_store(_run_of(plain))).shards)


def test_pod_that_is_done_makes_parts_of_a_late_shard(
    argo: ArgoApi, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """The seconds of the run are printed (`-s`), and in the report (`--junit-xml`)."""
    images = 80
    texts = [jobs.TEXTS[place % len(jobs.TEXTS)] for place in range(images)]
    uri = jobs.prompts({"prompt": [*texts], "seed": list(range(images))})
    job = jobs.job(
        prompts=uri,
        shard={"images": images // 2},
        defaults={"steps": 25},
        cluster={"namespace": kube.NAMESPACE, "profile": "test", "parallelism": 2},
    )
    name = submit_with_template(job, argo)
    wait_for_pod(name, "generate")
    slow = _pod_of_shard(name, 1)
    kube.wait_until(300, "a part of the late shard", lambda: _has_part(job, 1))
    for _ in range(200):
        if get_phase(slow) != "Running":
            break
        kube.send_signal(slow, "SIGSTOP")
        time.sleep(4)
        kube.send_signal(slow, "SIGCONT")
        time.sleep(0.5)

    run = wait_for_success(name, argo)
    assert verify(run).ok == images
    stats = [each for shard in range(2) if (each := stats_of(run, shard))]
    assert sum(shard.images for shard in stats) == images
    seconds = (elapsed_seconds(stats) or 0.0) - (stats[0].seconds.load or 0.0)
    record_testsuite_property("seconds_with_help", round(seconds))
    print(f"\n{seconds:.0f} s with help, one of two pods slowed down")  # noqa: T201
    assert stats[0].helped_images > 0


def _has_part(job: Job, shard: int) -> bool:
    return any(f"images/{shard:05d}-" in key for key in jobs.write_times(_run_of(job)))


def _pod_of_shard(workflow: str, shard: int) -> str:
    """The name of the running pod of a shard."""

    def look() -> str | None:
        for pod in kube.pods(workflow, "generate"):
            arguments = kube.get_field(pod, "spec", "containers")
            if f'"--shard", "{shard}"' in json.dumps(arguments):
                return kube.name(pod) if get_phase(kube.name(pod)) == "Running" else None
        return None

    return kube.wait_until(300, f"the pod of shard {shard}", look)


def get_phase(pod: str) -> str:
    """Whether a pod runs; empty where it is gone."""
    phases = [
        kube.get_field(item, "status", "phase")
        for item in kube.items("pods")
        if kube.name(item) == pod
    ]
    return str(phases[0]) if phases else ""
