"""Alerts fire by causes on the cluster, and clear, in a Prometheus beside it.

Its rules count four seconds for each minute. Argo's metrics and those of pods are the cluster's
own; DCGM exporter, which has no GPU to measure, is a stand-in that names the pod at work.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import stop
from imagekiln.workflows.client.schedules import resume, schedule, suspend
from tests.cluster import jobs, kube
from tests.cluster.controller_metrics import read_controller_metrics
from tests.cluster.test_losses import slow_job
from tests.cluster.test_profiles import job_with_profile
from tests.cluster.waiting import (
    submit_with_template,
    wait_for_end,
    wait_for_pod,
    wait_for_success,
)
from tests.exporters import Gpu, dcgm_metrics
from tests.prometheus import PLAIN, Prometheus, Target, exporter, plain_config, program, prometheus

MINUTE = 4  # seconds
SECONDS = 600
POD_READER = (
    "import urllib.request; "
    "print(urllib.request.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
)


@dataclass(slots=True)
class Cluster:
    """What Prometheus scrapes. A test sets the GPUs."""

    server: Prometheus | None = None
    gpus: list[Gpu] = field(default_factory=list)

    def wait_for_alert(self, name: str, **labels: str) -> None:
        """Wait until the alert fires."""
        query = _firing(name, labels)
        kube.wait_until(SECONDS, f"{name} to fire", lambda: self.has(query))

    def wait_for_clearing(self, name: str, **labels: str) -> None:
        """Wait until the alert does not fire any more."""
        query = f"vector(1) unless on () {_firing(name, labels)}"
        kube.wait_until(SECONDS, f"{name} to clear", lambda: self.has(query))

    def has(self, query: str) -> bool:
        """Whether the query gives anything."""
        assert self.server is not None
        return bool(self.server.query(query))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Prometheus that scrapes the cluster, as long as the tests of this module run."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    rules = _faster((PLAIN / "rules.yaml").read_text(encoding="utf-8"))
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    state = Cluster()
    with (
        _polling(read_controller_metrics) as argo_address,
        _polling(_pod_metrics) as pods_address,
        exporter(lambda: dcgm_metrics(state.gpus)) as dcgm_address,
    ):
        config = plain_config(
            {
                "imagekiln-generate": [Target(pods_address)],
                "argo-workflows": [Target(argo_address)],
                "dcgm-exporter": [Target(dcgm_address)],
            }
        )
        interval = f"{MINUTE // 2}s"
        config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
        for scrape in config["scrape_configs"]:
            scrape.pop("scrape_interval", None)
        with prometheus(folder, config) as server:
            state.server = server
            yield state


def test_failed_run_is_reported_until_the_job_succeeds(cluster: Cluster, argo: ArgoApi) -> None:
    name = f"failing-{uuid4().hex[:8]}"
    nothing = f"{jobs.BUCKET}/prompts/none-{uuid4().hex}.parquet"
    wait_for_end(submit_with_template(jobs.job(name=name, prompts=nothing), argo), argo)
    cluster.wait_for_alert("ImagekilnRunFailed", job=name)
    wait_for_success(submit_with_template(jobs.job(name=name), argo), argo)
    cluster.wait_for_clearing("ImagekilnRunFailed", job=name)


def test_gpu_that_its_pod_does_not_use_is_reported_until_it_does(
    cluster: Cluster, argo: ArgoApi
) -> None:
    job = slow_job(600, name=f"idle-{uuid4().hex[:8]}")
    workflow = submit_with_template(job, argo)
    pod = kube.name(wait_for_pod(workflow, "generate"))
    cluster.gpus = [Gpu(0, pod, utilization=1)]
    cluster.wait_for_alert("ImagekilnGpuIdle", pod=pod, job=job.name, shard="0")
    cluster.gpus = [Gpu(0, pod, utilization=98)]
    cluster.wait_for_clearing("ImagekilnGpuIdle", pod=pod)
    stop(workflow, kube.NAMESPACE, argo)
    wait_for_end(workflow, argo)


def test_gpu_with_an_xid_error_is_reported(cluster: Cluster) -> None:
    cluster.gpus = [Gpu(1, node="node-9")]
    kube.wait_until(SECONDS, "a healthy GPU", lambda: cluster.has("imagekiln:gpu:xid == 0"))
    cluster.gpus = [Gpu(1, node="node-9", xid=79)]
    cluster.wait_for_alert("ImagekilnGpuXidError", hostname="node-9")
    cluster.wait_for_clearing("ImagekilnGpuXidError", hostname="node-9")


def test_pods_that_no_node_takes_are_reported_until_they_are_gone(
    cluster: Cluster, argo: ArgoApi, tmp_path: Path
) -> None:
    job = job_with_profile(tmp_path, "nowhere", "generate: {node_selector: {no.such/label: x}}")
    workflow = submit_with_template(job, argo)
    cluster.wait_for_alert("ImagekilnPodsPending")
    stop(workflow, kube.NAMESPACE, argo)
    wait_for_end(workflow, argo)
    cluster.wait_for_clearing("ImagekilnPodsPending")


def test_schedule_that_is_suspended_is_missed_until_it_starts_again(
    cluster: Cluster, argo: ArgoApi
) -> None:
    job = jobs.job(name=f"missed-{uuid4().hex[:8]}", run_id=None, shard={"images": 12})
    cron = schedule(job, "* * * * *", argo=argo)
    try:
        labels = f"workflows.argoproj.io/cron-workflow={cron}"
        kube.wait_until(
            150, "a firing", lambda: argo.list_objects("Workflow", kube.NAMESPACE, labels)
        )
        suspend(cron, kube.NAMESPACE, argo)
        cluster.wait_for_alert("ImagekilnNightMissed", job=job.name)
        resume(cron, kube.NAMESPACE, argo)
        cluster.wait_for_clearing("ImagekilnNightMissed", job=job.name)
    finally:
        argo.delete("CronWorkflow", kube.NAMESPACE, cron)


def _firing(name: str, labels: dict[str, str]) -> str:
    matchers = {"alertname": name, "alertstate": "firing"} | labels
    return "ALERTS{" + ",".join(f'{key}="{value}"' for key, value in matchers.items()) + "}"


def _faster(rules: str) -> str:
    """The rules with four seconds in place of each minute, and limits of tests."""
    short = re.sub(r"\b(\d+)m\b", lambda match: f"{int(match[1]) * MINUTE}s", rules)
    return short.replace("26 * 3600", "150")


@contextmanager
def _polling(read: Callable[[], str]) -> Iterator[str]:
    """Serve what `read` returned last: kubectl is slower than a scrape may be."""
    texts = [""]
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(1):
            try:
                texts[0] = read()
            except AssertionError:  # a pod that has just gone
                continue

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        with exporter(lambda: texts[0]) as address:
            yield address
    finally:
        ended.set()
        thread.join()


def _pod_metrics() -> str:
    """The metrics of the pods that generate, with the labels that Prometheus adds."""
    pods = kube.items(
        "pods", "--selector", "imagekiln.dev/step=generate", "--field-selector=status.phase=Running"
    )
    texts = []
    for pod in map(kube.name, pods):
        text = kube.kubectl("exec", pod, "--container", "main", "--", "python", "-c", POD_READER)
        labels = f'namespace="{kube.NAMESPACE}",pod="{pod}"'
        text = re.sub(r"^(imagekiln_\w+)\{", rf"\1{{{labels},", text, flags=re.MULTILINE)
        texts.append(re.sub(r"^(imagekiln_\w+) ", rf"\1{{{labels}}} ", text, flags=re.MULTILINE))
    return "\n".join(line for line in "\n".join(texts).splitlines() if line[:1] != "#") + "\n"
