"""Each alert fires by its cause on the cluster, and clears, in a Prometheus beside it.

Its rules count four seconds for each minute. Argo's metrics and those of pods are the cluster's
own; DCGM exporter, which has no GPU to measure, is a stand-in that names the pod at work. Causes
that do not disturb one another work at the same time: all of them take a quarter of an hour.
"""

import json
import re
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
import requests
import yaml

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import stop
from imagekiln.workflows.client.schedules import create, pause, resume
from tests.cluster import jobs, kube
from tests.cluster.controller_metrics import read_controller_metrics
from tests.cluster.gpus import Gpu, dcgm_metrics
from tests.cluster.test_doctor import object_patched
from tests.cluster.test_losses import slow_job, wait_for_parts
from tests.cluster.test_profiles import job_with_profile
from tests.cluster.waiting import (
    CRON_LABEL,
    submit_with_template,
    wait_for_end,
    wait_for_firing,
    wait_for_pod,
    wait_for_success,
)
from tests.prometheus import PLAIN, Alert, Prometheus, exporter, plain_config, program, prometheus

MINUTE = 4  # seconds
SECONDS = 600
EVERY_MINUTE = "* * * * *"
PODS, ARGO, DCGM = "imagekiln-generate", "argo-workflows", "dcgm-exporter"
METRICS_PORT = 9464
# Names that no earlier job had: Argo's counters are by job.
NUMBER = uuid4().hex[:8]
HANGING, SLOW, FAILING, LATE, HEALTHY = (
    f"{kind}-{NUMBER}" for kind in ("hanging", "slow", "failing", "late", "healthy")
)
HEALTHY_SECONDS = 200
# Limits of jobs in seconds of this machine. The others have those that are shipped.
LIMITS = (
    ("run_seconds", SLOW, 60),
    ("success_age_seconds", FAILING, 60),
    ("run_seconds", LATE, 60),
    ("start_age_seconds", LATE, 150),
    ("run_seconds", HEALTHY, HEALTHY_SECONDS),
)
FAILING_ROWS = 80
GOOD_ROWS = 4000  # more than a pod draws in the time
# Where a label is missing in a text of an alert.
HOLE = re.compile(r"  |^ | [.,]|no value|NaN")


@dataclass(slots=True)
class Cluster:
    """What Prometheus scrapes, by files in `folder` that name the targets. Tests set the GPUs."""

    folder: Path
    server: Prometheus | None = None
    argo_target: str = ""
    gpus: dict[str, Gpu] = field(default_factory=dict)

    def wait_for_alert(self, name: str, **labels: str) -> None:
        """Wait until the alert fires, with texts that name all that they promise."""
        what = f"{name} of {labels} to fire"
        alert = kube.wait_until(SECONDS, what, lambda: self.find_alert(name, **labels))
        holes = [text for text in alert.annotations.values() if HOLE.search(text)]
        assert not holes, (alert.labels, holes)

    def wait_for_clearing(self, name: str, **labels: str) -> None:
        """Wait until the alert does not fire any more."""
        what = f"{name} of {labels} to clear"
        kube.wait_until(SECONDS, what, lambda: self.find_alert(name, **labels) is None)

    def find_alert(self, name: str, **labels: str) -> Alert | None:
        """The alert of this name and these labels, if it fires now."""
        assert self.server is not None
        alerts = self.server.firing_alerts(name)
        return next((alert for alert in alerts if labels.items() <= alert.labels.items()), None)

    def has(self, query: str) -> bool:
        """Whether the query gives anything."""
        assert self.server is not None
        return bool(self.server.query(query))

    def set_targets(self, job: str, *targets: Mapping[str, object]) -> None:
        """Let Prometheus scrape these for a job of its configuration, and nothing else."""
        file = self.folder / f"{job}.json"
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(targets), encoding="utf-8")
        draft.replace(file)


Cause = Callable[[Cluster, ArgoApi], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Prometheus that scrapes the cluster, as long as the tests of this module run."""
    program("prometheus")
    state = Cluster(tmp_path_factory.mktemp("prometheus"))
    rules = _faster((PLAIN / "rules.yaml").read_text(encoding="utf-8"))
    (state.folder / "rules.yaml").write_text(rules, encoding="utf-8")
    (state.folder / "limits.yaml").write_text(yaml.safe_dump(_limits()), encoding="utf-8")
    with (
        _argo_exporter() as state.argo_target,
        exporter(lambda: dcgm_metrics([*state.gpus.values()])) as dcgm_address,
        _discovered_pods(state),
    ):
        state.set_targets(ARGO, _target(state.argo_target))
        state.set_targets(DCGM, _target(dcgm_address))
        with prometheus(state.folder, _configuration(state.folder)) as state.server:
            kube.wait_until(60, "Argo's metrics", lambda: state.has("argo_workflows_gauge"))
            yield state


def hanging_run(cluster: Cluster, argo: ArgoApi) -> None:
    """A run whose first images fail, and whose pod does not use its GPU, and hangs in the end."""
    job = _job_with_failures()
    run = {"namespace": kube.NAMESPACE, "job": job.name, "run": str(job.run_id)}
    workflow = submit_with_template(job, argo)
    pod = kube.name(wait_for_pod(workflow, "generate"))
    cluster.gpus[HANGING] = Gpu(0, pod, utilization=1)
    cluster.wait_for_alert("ImagekilnFailedShare", **run)
    cluster.wait_for_alert("ImagekilnGpuIdle", pod=pod, job=job.name, shard="0")
    cluster.wait_for_clearing("ImagekilnFailedShare", **run)

    kube.send_signal(pod, "SIGSTOP")
    cluster.wait_for_alert("ImagekilnStuck", pod=pod, shard="0", **run)
    assert cluster.find_alert("ImagekilnGpuIdle", pod=pod, job=job.name, shard="0")
    kube.send_signal(pod, "SIGCONT")
    cluster.gpus[HANGING] = Gpu(0, pod, utilization=98)
    cluster.wait_for_clearing("ImagekilnStuck", pod=pod)
    cluster.wait_for_clearing("ImagekilnGpuIdle", pod=pod)

    stop(workflow, kube.NAMESPACE, argo)
    wait_for_end(workflow, argo)
    del cluster.gpus[HANGING]


def failing_schedule(cluster: Cluster, argo: ArgoApi) -> None:
    """A schedule that has never succeeded: its prompts come too late."""
    folder = f"nights/{NUMBER}"
    prompts = f"{jobs.BUCKET}/{folder}/{{date}}/*.parquet"
    job = jobs.job(name=FAILING, run_id=None, prompts=prompts, shard={"images": 12})
    with _scheduled(job, argo):
        cluster.wait_for_alert("ImagekilnRunFailed", job=job.name)
        cluster.wait_for_alert("ImagekilnNoSuccess", job=job.name)
        now = datetime.now(UTC)
        for moment in (now, now + timedelta(days=1)):
            jobs.prompts(key=f"{folder}/{moment:%Y-%m-%d}/prompts.parquet")
        cluster.wait_for_clearing("ImagekilnRunFailed", job=job.name)
        cluster.wait_for_clearing("ImagekilnNoSuccess", job=job.name)


def healthy_night(cluster: Cluster, argo: ArgoApi) -> None:
    """A scheduled run that is as it should be: nobody is woken, also not when it has long ended."""
    job = jobs.job(name=HEALTHY, run_id=None, shard={"images": 12})
    with _scheduled(job, argo) as cron:
        workflow = wait_for_firing(cron, argo)
        pause(cron, kube.NAMESPACE, argo)
        wait_for_success(workflow, argo)
        started = f'imagekiln:schedule_last_start:timestamp_seconds{{job="{job.name}"}}'
        overdue = f"time() - {started} > {HEALTHY_SECONDS + 6 * MINUTE}"  # NightLate would fire
        kube.wait_until(SECONDS, "the limit to pass", lambda: cluster.has(overdue))
        fired = f'max_over_time(ALERTS{{alertstate="firing", job="{job.name}"}}[1h])'
        assert not cluster.has(fired)


def hot_gpus(cluster: Cluster, _argo: ArgoApi) -> None:
    """A GPU with an error, and one that is too hot: it says so itself, or by its temperature."""
    broken = Gpu(1, node="node-9")
    hot = Gpu(2, node="node-8")
    cluster.gpus |= {"broken": broken, "hot": hot}
    healthy = 'imagekiln:gpu:xid{hostname="node-9"} == 0'
    kube.wait_until(SECONDS, "a healthy GPU", lambda: cluster.has(healthy))
    cluster.gpus["broken"] = replace(broken, xid=79)
    cluster.wait_for_alert("ImagekilnGpuXidError", **_labels_of(broken))

    seconds = count()

    def slow_down() -> Alert | None:
        cluster.gpus["hot"] = replace(hot, throttled=next(seconds) * 1e6)
        return cluster.find_alert("ImagekilnGpuThrottled", **_labels_of(hot))

    kube.wait_until(SECONDS, "ImagekilnGpuThrottled to fire", slow_down)
    cluster.wait_for_clearing("ImagekilnGpuThrottled", **_labels_of(hot))
    cluster.gpus["hot"] = replace(hot, temperature=91)
    cluster.wait_for_alert("ImagekilnGpuThrottled", **_labels_of(hot))
    cluster.gpus["hot"] = hot
    cluster.wait_for_clearing("ImagekilnGpuThrottled", **_labels_of(hot))
    cluster.wait_for_clearing("ImagekilnGpuXidError", **_labels_of(broken))


def waiting_night(cluster: Cluster, argo: ArgoApi) -> None:
    """A night whose pods no node takes, while its schedule is suspended."""
    settings = "generate: {node_selector: {no.such/label: x}}"
    job = job_with_profile(cluster.folder, "nowhere", settings, name=LATE, run_id=None)
    with _scheduled(job, argo) as cron:
        workflow = wait_for_firing(cron, argo)
        pause(cron, kube.NAMESPACE, argo)
        cluster.wait_for_alert("ImagekilnNightLate", job=job.name)
        cluster.wait_for_alert("ImagekilnPodsPending")
        cluster.wait_for_alert("ImagekilnNightMissed", job=job.name)

        stop(workflow, kube.NAMESPACE, argo)
        wait_for_end(workflow, argo)
        cluster.wait_for_clearing("ImagekilnNightLate", job=job.name)
        cluster.wait_for_clearing("ImagekilnPodsPending")
        resume(cron, kube.NAMESPACE, argo)
        cluster.wait_for_clearing("ImagekilnNightMissed", job=job.name)


def full_quota(cluster: Cluster, argo: ArgoApi) -> None:
    """No GPU is left in the quota, while the pods of the waiting night wait for a node."""
    kube.wait_until(SECONDS, "a pod that waits for a node", _pod_of_late_night)
    hard = kube.get_field(kube.get("resourcequota", kube.NAMESPACE), "spec", "hard")
    none = {"spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    with object_patched("resourcequota", kube.NAMESPACE, none, {"spec": {"hard": hard}}):
        workflow = submit_with_template(jobs.job(), argo)
        cluster.wait_for_alert("ImagekilnQuotaExhausted")
        cluster.wait_for_alert("ImagekilnPodsPending")  # before pods draw
    wait_for_success(workflow, argo)
    cluster.wait_for_clearing("ImagekilnQuotaExhausted")


def slow_run(cluster: Cluster, argo: ArgoApi) -> None:
    """A run that is too slow goes on after the object store was away for a while."""
    job = slow_job(GOOD_ROWS, name=SLOW)
    run = {"namespace": kube.NAMESPACE, "job": job.name, "run": str(job.run_id)}
    workflow = submit_with_template(job, argo)
    wait_for_parts(job)
    pod = kube.name(wait_for_pod(workflow, "generate"))
    kube.inject_fault("s3-stop")
    try:
        cluster.wait_for_alert("ImagekilnStorageErrors", pod=pod, **run)
    finally:
        kube.inject_fault("s3-start")
    before = len(wait_for_parts(job))
    kube.wait_until(300, "another part", lambda: len(wait_for_parts(job)) > before)
    cluster.wait_for_clearing("ImagekilnStorageErrors", **run)
    cluster.wait_for_alert("ImagekilnDeadlineNear", **run)
    stop(workflow, kube.NAMESPACE, argo)
    wait_for_end(workflow, argo)
    cluster.wait_for_clearing("ImagekilnDeadlineNear", **run)


def unseen_argo(cluster: Cluster, _argo: ArgoApi) -> None:
    """Argo's controller is no target of Prometheus any more."""
    cluster.set_targets(ARGO)
    cluster.wait_for_alert("ImagekilnNotMonitored")
    cluster.set_targets(ARGO, _target(cluster.argo_target))
    cluster.wait_for_clearing("ImagekilnNotMonitored")


# Those of one group are tried at the same time. Where pods are to wait, none may draw.
GROUPS: tuple[tuple[Cause, ...], ...] = (
    (hanging_run, failing_schedule, healthy_night, hot_gpus),
    (waiting_night, full_quota),
    (slow_run, unseen_argo),
)


@dataclass(frozen=True, slots=True)
class Trials:
    """The causes that are tried in this session, each in a thread."""

    selected: Collection[Cause]
    start: Callable[[Cause], "Future[None]"]
    running: dict[Cause, "Future[None]"] = field(default_factory=dict)

    def join(self, cause: Cause) -> None:
        """Start the causes of its group, unless they are started, and wait for this one's end."""
        if cause not in self.running:
            (group,) = (group for group in GROUPS if cause in group)
            for member in group:
                if member in self.selected:
                    self.running[member] = self.start(member)
        self.running[cause].result()


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest, cluster: Cluster, argo: ArgoApi) -> Iterator[Trials]:
    parameters = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    selected = {cast("Cause", values["trial"]) for values in parameters if "trial" in values}
    with ThreadPoolExecutor() as pool:
        yield Trials(selected, lambda cause: pool.submit(cause, cluster, argo))


@pytest.mark.parametrize(
    "trial", [cause for group in GROUPS for cause in group], ids=lambda cause: cause.__name__
)
def test_alerts_fire_by_their_cause_and_clear(trial: Cause, trials: Trials) -> None:
    trials.join(trial)


def _job_with_failures() -> Job:
    """A job of one shard: rows that are planned and fail when they are drawn, then good ones."""
    rows = FAILING_ROWS + GOOD_ROWS
    numbers: list[object] = [*range(rows)]
    texts: list[object] = [jobs.TEXTS[row % len(jobs.TEXTS)] for row in range(rows)]
    # LCM's scheduler takes its steps from 50.
    samplers: list[object] = [*["lcm"] * FAILING_ROWS, *["default"] * GOOD_ROWS]
    steps: list[object] = [*[60] * FAILING_ROWS, *[25] * GOOD_ROWS]
    columns = {"prompt": texts, "seed": numbers, "sampler": samplers, "steps": steps}
    return jobs.job(name=HANGING, prompts=jobs.prompts(columns), shard={"images": rows})


@contextmanager
def _scheduled(job: Job, argo: ArgoApi) -> Iterator[str]:
    """The schedule of a job for every minute, deleted at the end with all that it has started."""
    cron = create(job, (EVERY_MINUTE,), argo=argo)
    try:
        yield cron
    finally:
        argo.delete("CronWorkflow", kube.NAMESPACE, cron)
        kube.kubectl("delete", "workflow", "--selector", f"{CRON_LABEL}={cron}", "--wait=false")


def _pod_of_late_night() -> bool:
    label = f"imagekiln.dev/job={LATE}"
    return bool(kube.items("pods", "--selector", label, "--field-selector=status.phase=Pending"))


def _labels_of(gpu: Gpu) -> dict[str, str]:
    """What an alert says of a GPU."""
    return {name: gpu.labels()[name] for name in ("hostname", "gpu", "UUID")}


def _faster(rules: str) -> str:
    """The rules with four seconds in place of each minute."""
    return re.sub(r"\b(\d+)m\b", lambda match: f"{int(match[1]) * MINUTE}s", rules)


def _limits() -> object:
    """Rules as users write them for one job."""
    rules = [
        {
            "record": f"imagekiln:limit_{limit}",
            "labels": {"job": job},
            "expr": f"vector({seconds})",
        }
        for limit, job, seconds in LIMITS
    ]
    return {"groups": [{"name": "limits-of-tests", "interval": "1s", "rules": rules}]}


def _configuration(folder: Path) -> dict[str, object]:
    """The plain configuration, whose targets are in files."""
    config = plain_config({})
    interval = f"{MINUTE // 2}s"
    config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = ["rules.yaml", "limits.yaml"]
    for scrape in config["scrape_configs"]:
        scrape.pop("scrape_interval", None)
        scrape.pop("static_configs")
        files = [str(folder / f"{scrape['job_name']}.json")]
        scrape["file_sd_configs"] = [{"files": files, "refresh_interval": "1s"}]
    return config


def _target(address: str, **labels: str) -> dict[str, object]:
    return {"targets": [address], "labels": labels}


@contextmanager
def _repeated(action: Callable[[], None]) -> Iterator[None]:
    """Do something every second while the block runs; what cannot be read now is read later."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(1):
            with suppress(AssertionError, OSError):
                action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _argo_exporter() -> Iterator[str]:
    """Serve what Argo's controller served last, to whoever may not reach it."""
    texts = [read_controller_metrics()]

    def read() -> None:
        texts[0] = read_controller_metrics()

    with _repeated(read), exporter(lambda: texts[0]) as address:
        yield address


@contextmanager
def _discovered_pods(cluster: Cluster) -> Iterator[None]:
    """Keep the pods that generate as targets, each reached through the cluster's API."""
    selectors = {
        "labelSelector": "imagekiln.dev/step=generate",
        "fieldSelector": "status.phase=Running",
    }
    path = f"/api/v1/namespaces/{kube.NAMESPACE}/pods"
    with _api_proxy() as address:

        def discover() -> None:
            answer = requests.get(f"http://{address}{path}", params=selectors, timeout=10)
            answer.raise_for_status()
            names = map(kube.name, answer.json()["items"])
            targets = (_pod_target(address, f"{path}/{name}", name) for name in names)
            cluster.set_targets(PODS, *targets)

        with _repeated(discover):
            yield


def _pod_target(address: str, path: str, name: str) -> dict[str, object]:
    metrics = f"{path}:{METRICS_PORT}/proxy/metrics"
    return _target(address, namespace=kube.NAMESPACE, pod=name, __metrics_path__=metrics)


@contextmanager
def _api_proxy() -> Iterator[str]:
    """An address of this machine where the cluster's API answers without credentials."""
    command = ["kubectl", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]  # Starting to serve on 127.0.0.1:...
        finally:
            process.terminate()
