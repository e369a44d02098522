"""What is shipped for Prometheus and Grafana, and a Prometheus on loopback to try it with."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
import yaml

MONITORING = Path(__file__).parents[1] / "workflows" / "cluster" / "monitoring"
PLAIN = MONITORING / "plain"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
# What Grafana puts in place of its variables. The longest first: one is the beginning of another.
VARIABLES = {
    "$__rate_interval": "1m",
    "$__range_s": "3600",
    "$__range": "1h",
    "$job": ".*",
    "$run": ".*",
}
INSTALL = "is not installed (Debian: apt-get install --no-install-recommends prometheus)"


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel, as Grafana sends it."""

    dashboard: str
    panel: str
    number: int
    expression: str
    legend: str

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.dashboard}: {self.panel} {self.number}"


def program(name: str) -> str:
    """The path of promtool or prometheus; skips the test where there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} {INSTALL}")
    return path


def promtool(*arguments: str | Path) -> None:
    """Run promtool. Fails the test with what it printed."""
    result = subprocess.run(
        [program("promtool"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def panel_queries(variables: Mapping[str, str] = VARIABLES) -> Iterator[Query]:
    """Every query of every panel."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for number, target in enumerate(panel["targets"]):
                expression = target["expr"]
                for variable, value in variables.items():
                    expression = expression.replace(variable, value)
                legend = target.get("legendFormat", "")
                yield Query(file.stem, panel["title"], number, expression, legend)


@dataclass(frozen=True, slots=True)
class Target:
    """What serves metrics, and the pod that Kubernetes would say it is."""

    address: str
    pod: str = ""

    def as_config(self) -> dict[str, object]:
        """As a static configuration."""
        labels = {"namespace": "imagekiln", "pod": self.pod} if self.pod else {}
        return {"targets": [self.address], "labels": labels}


def plain_config(targets: Mapping[str, Sequence[Target]]) -> dict[str, Any]:
    """The plain configuration, with these targets by job name in place of a cluster's pods."""
    config = yaml.safe_load((PLAIN / "prometheus.yaml").read_text(encoding="utf-8"))
    for scrape in config["scrape_configs"]:
        for key in ("kubernetes_sd_configs", "relabel_configs", "tls_config", "scheme"):
            scrape.pop(key, None)
        scrape["static_configs"] = [
            target.as_config() for target in targets.get(scrape["job_name"], ())
        ]
    assert isinstance(config, dict)
    return config


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a query."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Prometheus:
    """A server's API."""

    def __init__(self, url: str) -> None:
        """Take the address."""
        self._url = url

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """The samples that the expression gives now, or at so many seconds since 1970."""
        times = {} if at is None else {"time": str(at)}
        result = self._get("query", query=expression, **times)["result"]
        return [Sample(series["metric"], float(series["value"][1])) for series in result]

    def firing_alerts(self, name: str) -> list[Alert]:
        """The alerts of this name that fire now."""
        return [
            Alert(alert["labels"], alert["annotations"])
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing" and alert["labels"]["alertname"] == name
        ]

    def _get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401  # JSON
        response = requests.get(f"{self._url}/api/v1/{path}", params=parameters, timeout=30)
        answer = response.json()
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def prometheus(folder: Path, config: object, *options: str) -> Iterator[Prometheus]:
    """Run a Prometheus that keeps its data in the folder, until the context ends."""
    command = program("prometheus")
    port = free_port()
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    with (folder / "prometheus.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                command,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                *options,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _is_ready(url), "Prometheus to start")
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait until it is so. Fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/-/ready", timeout=1).ok
    except requests.ConnectionError:
        return False


@contextmanager
def exporter(text: Callable[[], str]) -> Iterator[str]:
    """Serve metrics on loopback; yields the address. `text` gives what a scrape gets."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
