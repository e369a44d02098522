"""No text of a user's becomes a part of a template, an expression, a manifest or a command."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.templates.steps import ENCODED_PARAMETERS
from imagekiln.workflows.templates.workflow_template import (
    WORKFLOW_PARAMETERS,
    build_workflow_template,
)
from tests.workflows.argo_variables import VARIABLE, fill_in, fill_in_template
from tests.workflows.goldens import NAMESPACE

BATCH_FILE = Path(__file__).parents[3] / "workflows/cluster/base/batch.yaml"
BATCH = yaml.safe_load(BATCH_FILE.read_text(encoding="utf-8"))["spec"]["templates"][0]
# What ends a text or begins something else: in YAML, JSON, Argo, Kubernetes, and a shell.
HOSTILE = (
    "'\n    serviceAccountName: imagekiln-further\n    x: '",
    '"\n    podSpecPatch: "{}',
    "8\n    serviceAccountName: imagekiln-further",
    "{{workflow.parameters.settings}}",
    '{{=toJson(workflow.parameters["settings"])}}',
    "{{=workflow.parameters.settings}}",
    "{{inputs.parameters.job}}",
    "$(AWS_SECRET_ACCESS_KEY)",
    "`id`; $(id) #",
    "--help",
    "\\\\u007b\\",
    "&a *a !!python/object/apply:os.system [id]",
    "\u2028é\t",
)
FRAGMENTS = (*HOSTILE, "{", "}", "{{", "}}", "{{=", "'", '"', "\\", "\n", "a", ": ", "- ", "#")
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
# What our own steps hand on, as numbers, or in the characters of a name or URI.
OWN_INPUTS = {
    "run", "number", "shard", "first", "count", "judge", "pods", "workflows",
    "parallelism", "priority_class", "job_name", "run_id",
}  # fmt: skip


def test_every_unencoded_input_of_a_step_is_one_that_our_own_steps_make() -> None:
    raw: set[str] = set()
    for name in bundled_profiles():
        for template in _templates(name):
            raw |= set(_raw_inputs(template))
    assert raw == OWN_INPUTS


def test_of_parameters_and_failures_of_a_workflow_only_the_date_is_unencoded() -> None:
    raw = {
        tag
        for name in bundled_profiles()
        for tag in VARIABLE.findall(json.dumps(_templates(name)))
        if tag.startswith(("workflow.parameters", "workflow.failures"))
    }
    assert raw == {"workflow.parameters.logical-date"}  # a schedule's is a variable itself


def test_no_variable_of_a_step_can_refer_to_a_secret() -> None:
    for name in bundled_profiles():
        for template in _templates(name):
            variables = template.get("container", {}).get("env", [])
            are_secret = ["secretKeyRef" in item.get("valueFrom", {}) for item in variables]
            texts = are_secret.count(False)
            assert are_secret[:texts] == [False] * texts, template["name"]


@pytest.mark.parametrize("text", HOSTILE)
def test_plan_gets_each_parameter_as_it_was_written_whatever_it_holds(text: str) -> None:
    template = next(item for item in _templates("gpu") if item["name"] == "plan")
    common = {f"workflow.parameters.{name}": text for name in WORKFLOW_PARAMETERS}
    common["workflow.parameters.logical-date"] = "2026-11-21"
    filled = fill_in_template(template, common, {})
    variables = {item["name"]: item.get("value") for item in filled["container"]["env"]}
    for variable in ENCODED_PARAMETERS:
        assert base64.b64decode(str(variables.pop(variable))).decode() == text
    before = {item["name"]: item.get("value") for item in template["container"]["env"]}
    changed = {name for name in variables if variables[name] != before[name]}
    assert changed == {"IMAGEKILN_LOGICAL_DATE"}
    assert filled["container"]["args"] == template["container"]["args"]


@given(text=TEXTS)
def test_no_text_of_a_caller_changes_the_workflow_of_a_batch(text: str) -> None:
    inputs = dict.fromkeys((*WORKFLOW_PARAMETERS, "template", "priority-class"), text)
    inputs |= {"name": "images", "parallelism": "8"}
    spec = _child_workflow(inputs, other=text)["spec"]
    assert set(spec) == {
        "workflowTemplateRef", "parallelism", "podPriorityClassName", "arguments",
    }  # fmt: skip
    assert spec["workflowTemplateRef"] == {"name": text}
    assert spec["parallelism"] == 8
    assert spec["podPriorityClassName"] == text
    parameters = {item["name"]: item["value"] for item in spec["arguments"]["parameters"]}
    assert parameters == dict.fromkeys(WORKFLOW_PARAMETERS, text)


@given(text=TEXTS)
def test_name_of_a_batch_is_a_name_or_refused(text: str) -> None:
    inputs = dict.fromkeys((*WORKFLOW_PARAMETERS, "template", "priority-class"), "")
    workflow = _child_workflow(inputs | {"name": text, "parallelism": "8"}, other="s")
    name = workflow["metadata"]["name"]
    # Kubernetes refuses a name with an underscore.
    assert name == f"nightly-{text}" or "_" in name
    assert set(workflow["metadata"]) == {"name", "labels"}


@pytest.mark.parametrize("text", ["8\n    serviceAccountName: other", "x", "", "8 # {{item}}"])
def test_number_of_a_batch_is_a_number_or_its_manifest_is_no_yaml(text: str) -> None:
    inputs = dict.fromkeys((*WORKFLOW_PARAMETERS, "template", "priority-class", "name"), "a")
    with pytest.raises(yaml.YAMLError):
        _child_workflow(inputs | {"parallelism": text}, other="s")


def _templates(profile: str) -> list[dict[str, Any]]:
    """With the step that rewrites prompts: all others are in this template too."""
    template: dict[str, Any] = build_workflow_template(
        load_profile(profile), NAMESPACE, rewrites=True
    )
    templates: list[dict[str, Any]] = template["spec"]["templates"]
    return templates


def _raw_inputs(template: dict[str, Any]) -> Iterator[str]:
    """The inputs that a template pastes as they are, into itself or into a manifest."""
    for tag in VARIABLE.findall(json.dumps(template)):
        if tag.startswith("inputs.parameters."):
            yield tag.removeprefix("inputs.parameters.")


def _child_workflow(inputs: dict[str, str], other: str) -> dict[str, Any]:
    """The workflow that the pod of a batch creates. Its caller has a parameter too."""
    common = {"workflow.name": "nightly", "workflow.parameters.settings": other}
    manifest = fill_in_template(BATCH, common, inputs)["resource"]["manifest"]
    # Argo fills in the pod as well, which has the template as a text in its environment.
    again = json.loads(fill_in(json.dumps(manifest), common))
    workflow: dict[str, Any] = yaml.safe_load(again)
    return workflow
