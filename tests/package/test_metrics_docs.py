"""The table of metrics in the docs lists those that there are."""

import re
from pathlib import Path
from typing import NamedTuple

from hera.workflows import Counter, Gauge, Histogram

from imagekiln.steps.runtime.metrics import METRICS
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.metrics import (
    SERVED_PREFIX,
    outcome_metrics,
    plan_metrics,
    shard_metrics,
)
from imagekiln.workflows.templates.workflow_template import build_workflow_template

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)


class Described(NamedTuple):
    """A metric as the docs describe it."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def described() -> list[Described]:
    """The rows of the table."""
    return [
        Described(name, kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in ROW.findall(PAGE.read_text())
    ]


def defined() -> list[Described]:
    """The metrics of pods in the order of the code, then those of runs."""
    of_pods = [
        Described(metric.full_name, metric.type, metric.labels, metric.meaning)
        for metric in METRICS
    ]
    of_runs = [
        _of_run(metric) for metric in (*plan_metrics(), *outcome_metrics(), *shard_metrics())
    ]
    return [*of_pods, *dict.fromkeys(of_runs)]


def _of_run(metric: Counter | Gauge | Histogram) -> Described:
    labels = metric.labels if isinstance(metric.labels, list) else []
    return Described(
        SERVED_PREFIX + metric.name,
        type(metric).__name__.lower(),
        tuple(label.key for label in labels),
        metric.help,
    )


def test_table_lists_every_metric_with_its_type_labels_and_meaning() -> None:
    assert described() == defined()


def test_templates_have_the_metrics_and_no_value_without_a_source() -> None:
    template = build_workflow_template(load_profile("gpu"), "images")
    spec = template["spec"]
    assert isinstance(spec, dict)
    rendered = set()
    for step in spec["templates"]:
        outputs = {item["name"] for item in step.get("outputs", {}).get("parameters", [])}
        for metric in step.get("metrics", {}).get("prometheus", []):
            rendered.add(SERVED_PREFIX + metric["name"])
            named = re.findall(r"outputs\.parameters\.(\w+)", str(metric))
            assert set(named) <= outputs
    assert rendered == {row.name for row in described() if row.name.startswith(SERVED_PREFIX)}
