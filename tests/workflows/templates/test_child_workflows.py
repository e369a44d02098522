"""Child workflows, for shards beyond what one holds."""

import json
import re
from typing import Any

import pytest
import yaml

from imagekiln.steps.job.fields import OBJECT_NAME_PATTERN
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile, Toleration
from imagekiln.workflows.templates.workflow import cron_workflow_name
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.workflows.argo_variables import fill_in
from tests.workflows.client.postcards import postcards
from tests.workflows.goldens import NAMESPACE

MAX_CHARS = 63  # of a workflow's name, that Argo takes


def test_plan_outputs_what_further_workflows_take_and_they_draw_with_the_same_image() -> None:
    templates = _templates()
    outputs = {parameter["name"] for parameter in templates["plan"]["outputs"]["parameters"]}
    inputs = {parameter["name"] for parameter in templates["further"]["inputs"]["parameters"]}
    assert {"parallelism", "priority_class"} < inputs <= outputs
    assert (
        "- name: gpu-image\n        value: {{=toJson(workflow.parameters['gpu-image'])}}"
        in templates["further-one"]["resource"]["manifest"]
    )


def test_further_workflow_reads_as_it_is_meant_whatever_a_text_holds() -> None:
    run = 's3://bucket/a "b": {c}\'s\n\\ #é'
    values = {
        "workflow.name": "postcards",
        '=sprig.trimAll("-.", sprig.trunc(-59, workflow.name))': "postcards",
        "inputs.parameters.number": "2",
        "inputs.parameters.parallelism": "8",
        "inputs.parameters.job_name": "1e3",
        "inputs.parameters.run_id": "2026-11-21",
        "=toJson(inputs.parameters.priority_class)": '""',
        "=toJson(inputs.parameters.run)": json.dumps(run),
        "=toJson(workflow.parameters['gpu-image'])": '"1e3"',
    }
    # Argo replaces each of them in the text, and then reads the text as YAML. 4000 stands for what
    # it computes.
    manifest = _templates()["further-one"]["resource"]["manifest"]
    text = re.sub(r"\{\{(.+?)\}\}", lambda match: values.get(match[1], "4000"), manifest)
    workflow = yaml.safe_load(text)

    labels = {"imagekiln.dev/part-of": "postcards"}
    assert workflow["metadata"] == {"name": "postcards-2", "labels": labels}
    spec = workflow["spec"]
    assert (spec["parallelism"], spec["podPriorityClassName"]) == (8, "")
    parameters = {item["name"]: item["value"] for item in spec["arguments"]["parameters"]}
    assert parameters == {
        "run": run,
        "first": "4000",
        "count": "4000",
        "job_name": "1e3",
        "run_id": "2026-11-21",
        "gpu-image": "1e3",
    }


@pytest.mark.parametrize(
    "parent",
    [
        "postcards",
        f"{cron_workflow_name(postcards(name='p' * 40))}-1795651200",
        f"abc-{'p' * 59}",
        f"abcd--.{'p' * 56}",
    ],
)
def test_name_of_a_child_workflow_is_one_that_argo_takes(parent: str) -> None:
    manifest = _templates()["further-one"]["resource"]["manifest"]
    values = {"workflow.name": parent, "inputs.parameters.number": "99"}
    filled = json.loads(fill_in(json.dumps(manifest), values))
    name = re.findall(r"^  name: '?([^'\n]+)'?$", filled, re.MULTILINE)[0]
    assert re.fullmatch(OBJECT_NAME_PATTERN, name)
    assert len(name) <= MAX_CHARS
    assert name.endswith(f"{parent[-50:]}-99")  # what tells one night from another


def test_pod_that_creates_further_workflows_is_placed_as_the_profiles_cpu_steps() -> None:
    gpu = load_profile("gpu")
    steps = gpu.steps.model_copy(
        update={
            "priority_class": "ours",
            "node_selector": {"pool": "cpu"},
            "tolerations": (Toleration(key="cpu-only"),),
        }
    )
    templates = _templates(gpu.model_copy(update={"steps": steps}))
    for name in ("plan", "further-one"):
        assert templates[name]["priorityClassName"] == "ours"
        assert templates[name]["nodeSelector"] == {"pool": "cpu"}
        assert templates[name]["tolerations"] == [{"key": "cpu-only", "operator": "Exists"}]
    assert "priorityClassName" not in _templates()["further-one"]


def _templates(profile: Profile | None = None) -> dict[str, Any]:
    profile = profile or load_profile("gpu")
    template: dict[str, Any] = build_workflow_template(profile, NAMESPACE)
    return {part["name"]: part for part in template["spec"]["templates"]}
