"""Every panel shows something: a real Prometheus scrapes a process that generates."""

import os
import re
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest

from tests.exporters import Exposition, Gpu, Night, argo_metrics, dcgm_metrics
from tests.kills import plan_run
from tests.prometheus import (
    PLAIN,
    Prometheus,
    Query,
    Target,
    exporter,
    faster,
    free_port,
    panel_queries,
    plain_config,
    program,
    prometheus,
    wait_for,
)

IMAGES = 2000
COMMAND = Path(sysconfig.get_path("scripts")) / "imagekiln"
SECONDS = 240


def test_every_panel_has_data_of_a_run_and_each_legend_its_labels(tmp_path: Path) -> None:
    pytest.importorskip("imagekiln.steps.generate.metrics_server", reason="serves no metrics yet")
    program("prometheus")
    run = plan_run(tmp_path, str(tmp_path / "out"), IMAGES)
    port = free_port()
    environment = {**os.environ, "IMAGEKILN_METRICS_PORT": str(port), "OMP_NUM_THREADS": "1"}
    (tmp_path / "rules.yaml").write_text(faster((PLAIN / "rules.yaml").read_text()))
    started = time.time()
    with (
        exporter(lambda: argo(run.plan.job.name, time.time() - started)) as argo_address,
        exporter(lambda: gpus(time.time() - started)) as dcgm_address,
        exporter(gpu_pod) as pod_address,
    ):
        config = plain_config(
            {
                "imagekiln-generate": [
                    Target(f"127.0.0.1:{port}", pod="p-0"),
                    Target(pod_address, pod="p-0"),
                ],
                "argo-workflows": [Target(argo_address)],
                "dcgm-exporter": [Target(dcgm_address)],
            }
        )
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for scrape in config["scrape_configs"]:
            scrape.pop("scrape_interval", None)
        generate = [str(COMMAND), "generate", run.uri, "--shard", "0"]
        with (
            prometheus(tmp_path, config) as server,
            subprocess.Popen(
                generate, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process,
        ):
            try:
                wait_until_panels_have_data(server, process)
            finally:
                process.kill()


def wait_until_panels_have_data(server: Prometheus, process: "subprocess.Popen[bytes]") -> None:
    """Ask all queries again and again until each has had an answer while the process worked."""
    empty = list(panel_queries())

    def ask() -> bool:
        empty[:] = [query for query in empty if not is_answered(server, query)]
        assert process.poll() is None or not empty, [query.name for query in empty]
        return not empty

    try:
        wait_for(ask, "data in every panel", SECONDS)
    except AssertionError as error:
        raise AssertionError([query.name for query in empty]) from error


def is_answered(server: Prometheus, query: Query) -> bool:
    """Whether there are samples, with the labels that the legend names."""
    samples = server.query(query.expression)
    if not samples:
        return False
    labels = {name for sample in samples for name in sample.labels}
    wanted = set(re.findall(r"{{(\w+)}}", query.legend)) - {"Hostname", "GPU_I_ID"}
    assert wanted <= labels, (query.name, wanted - labels)
    return True


def argo(job: str, elapsed: float) -> str:
    """A night that is being made, and one that failed before it."""
    ended = int(elapsed // 5)
    night = Night(
        job=job,
        started=ended + 1,
        succeeded=ended,
        failed=1,
        last_success=time.time() - 60,
        planned=IMAGES,
        images={"ok": 95, "blank": 1, "filtered": 1, "failed": 2, "missing": 1},
        gpu_seconds=dict.fromkeys(("drawing", "loading", "idle", "repeated"), elapsed),
        cost=elapsed / 100,
        duration=3600,
        shards=ended,
    )
    return argo_metrics([night], {"Pending": 2, "Running": 3})


def gpus(elapsed: float) -> str:
    """A GPU at work, one of another pod, and one that nobody has."""
    return dcgm_metrics(
        [
            Gpu(0, "p-0", 97, 61_000, 71, 640, elapsed * 640_000, throttled=elapsed),
            Gpu(1, "other", 3, 12_000),
            Gpu(2),
        ]
    )


def gpu_pod() -> str:
    """What a pod with a GPU serves besides, and this machine's CPU does not."""
    text = Exposition()
    for kind, size in (("allocated", 50e9), ("reserved", 60e9), ("limit", 80e9)):
        labels = {"device": "0", "kind": kind}
        text.add("gauge", "imagekiln_device_memory_bytes", (labels, size))
    return str(text)
