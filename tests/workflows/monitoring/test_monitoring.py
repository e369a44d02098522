"""The metrics, alerts and dashboards that ship: what Prometheus, Grafana and Kubernetes take."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from imagekiln.workflows.cli.starter import write_manifests
from tests.prometheus import (
    DASHBOARDS,
    MONITORING,
    PLAIN,
    Target,
    panel_queries,
    plain_config,
    promtool,
)
from tests.workflows.goldens import PLAIN_RULES, plain_rules

ROOT = Path(__file__).parents[3]
ALERTS = Path(__file__).with_name("alerts.yaml")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RULES = yaml.safe_load(PLAIN_RULES.read_text(encoding="utf-8"))
ALERT_RULES = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule
}
RULE_QUERIES = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def test_plain_rules_are_those_of_the_operator() -> None:
    assert PLAIN_RULES.read_text(encoding="utf-8") == plain_rules(), "run make golden"
    manifest = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))
    assert manifest["spec"] == RULES


def test_rules_are_what_prometheus_takes() -> None:
    promtool("check", "rules", PLAIN_RULES)


@pytest.mark.slow
def test_each_alert_fires_by_its_cause_and_clears() -> None:
    promtool("test", "rules", ALERTS)
    tried = set(re.findall(r"alertname='(\w+)'", ALERTS.read_text(encoding="utf-8")))
    assert tried == set(ALERT_RULES)


def test_plain_configuration_is_what_prometheus_takes(tmp_path: Path) -> None:
    # Debian's promtool knows no kubernetes_sd_configs.
    names = ("imagekiln-generate", "argo-workflows", "dcgm-exporter")
    config = plain_config({name: [Target("127.0.0.1:1")] for name in names})
    shutil.copy(PLAIN / "rules.yaml", tmp_path)
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    promtool("check", "config", tmp_path / "prometheus.yaml")


@pytest.mark.parametrize("name", ALERT_RULES)
def test_alert_says_what_to_do(name: str) -> None:
    rule = ALERT_RULES[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page.endswith("/docs/operations.md")
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]


def test_each_query_of_a_panel_is_one(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": query.expression}
        for number, query in enumerate(panel_queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_dashboard_imports_as_it_is(file: Path) -> None:
    dashboard = json.loads(file.read_text(encoding="utf-8"))
    assert dashboard["id"] is None
    assert dashboard["uid"] == f"imagekiln-{file.stem}"
    assert dashboard["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"

    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    for panel in panels:
        assert panel["description"], panel["title"]
        assert panel["datasource"] == DATASOURCE
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    used = set(re.findall(r"\$(\w+)", " ".join(query["expr"] for query in _targets(dashboard))))
    assert used <= {*variables, "__rate_interval", "__range", "__range_s"}


def test_each_recorded_series_in_use_is_recorded() -> None:
    recorded = {
        rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule
    }
    queries = [*RULE_QUERIES, *(query.expression for query in panel_queries())]
    used = set(re.findall(r"imagekiln:[a-z0-9_:]+", " ".join(queries)))
    assert used == recorded


def test_each_metric_of_ours_in_use_is_served() -> None:
    ours = pytest.importorskip("imagekiln.steps.runtime.metrics", reason="serves no metrics yet")
    argo = pytest.importorskip("imagekiln.workflows.templates.metrics", reason="likewise")
    pods = {metric.full_name for metric in ours.METRICS}
    runs = {
        f"{argo.SERVED_PREFIX}{metric.name}"
        for metric in [*argo.plan_metrics(), *argo.outcome_metrics(), *argo.shard_metrics()]
    }
    queries = [*RULE_QUERIES, *(query.expression for query in panel_queries())]
    text = re.sub(r"_(?:bucket|sum|count)\b", "", " ".join(queries))
    used = set(re.findall(r"\b(?:argo_workflows_)?imagekiln_\w+", text))
    assert used <= pods | runs


def test_manifests_with_monitoring_are_built_and_fill_grafana(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which puts the manifests together, is not installed")
    folder = tmp_path / "cluster"
    write_manifests(folder, monitoring=True)
    for overlay in ("whole-cluster", "own-namespace"):
        command = [kubectl, "kustomize", str(folder / "overlays" / overlay)]
        built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        manifests = list(yaml.safe_load_all(built))
        kinds = {manifest["kind"] for manifest in manifests}
        assert kinds >= {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
        assert all(
            manifest["metadata"]["namespace"] == "imagekiln"
            for manifest in manifests
            if manifest["apiVersion"].startswith("monitoring.coreos.com/")
        )
        dashboards = {
            name: json.loads(text)["uid"]
            for manifest in manifests
            if manifest["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
            for name, text in manifest["data"].items()
        }
        assert dashboards == {file.name: f"imagekiln-{file.stem}" for file in DASHBOARDS}


def _targets(dashboard: dict[str, list[dict[str, list[dict[str, str]]]]]) -> list[dict[str, str]]:
    return [target for panel in dashboard["panels"] for target in panel["targets"]]
