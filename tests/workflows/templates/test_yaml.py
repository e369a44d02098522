"""YAML as people review it and kubectl takes it: whatever is written reads back the same."""

import pytest
import yaml

from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from imagekiln.workflows.templates.yaml import (
    MAX_LINE,
    Unquoted,
    to_yaml,
)
from tests.workflows.goldens import NAMESPACE


@pytest.mark.parametrize("name", bundled_profiles())
def test_yaml_reads_back_as_what_was_rendered(name: str) -> None:
    template = build_workflow_template(load_profile(name), NAMESPACE)
    assert yaml.safe_load(to_yaml(template)) == template


@pytest.mark.parametrize(
    "text",
    ["1e3", "yes", " a: b ", "a\n\nb\n", "{{a}}", "", "a #b", "*a", 'it\'s "b"', "a}"],
)  # fmt: skip
def test_odd_texts_read_back_as_texts(text: str) -> None:
    value = {"text": text, "list": [text], "group": {"inner": {"text": text}}}
    assert yaml.safe_load(to_yaml(value)) == value


def test_group_that_fits_stands_in_one_line_and_any_other_in_several() -> None:
    short = {"item": {"name": "run", "valueFrom": {"path": "/tmp/run"}}}  # noqa: S108
    assert to_yaml(short) == "item: {name: run, valueFrom: {path: /tmp/run}}\n"
    wide = {"item": {"name": "run", "valueFrom": {"path": "x" * MAX_LINE}}}
    assert to_yaml(wide).splitlines()[0] == "item:"


def test_names_come_first_and_templates_last() -> None:
    text = to_yaml({"templates": ["a"], "args": ["b"], "zone": "c", "name": "d"})
    assert list(yaml.safe_load(text)) == ["name", "args", "zone", "templates"]


def test_text_for_argo_to_replace_stays_without_quotes_on_a_line_of_its_own() -> None:
    text = to_yaml({"parameter": {"name": "run", "value": Unquoted("{{=toJson(run)}}")}})
    assert text == "parameter:\n  name: run\n  value: {{=toJson(run)}}\n"
