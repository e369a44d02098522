"""What runs a job: once, or on a schedule."""

from typing import Any

import pytest
import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.render import render_manifests
from imagekiln.workflows.templates.workflow import (
    build_cron_workflow,
    build_workflow,
    job_parameter,
)
from tests.workflows.argo_schemas import mistakes
from tests.workflows.goldens import JOB, ODD


def test_runs_of_a_job_fit_argos_schemas() -> None:
    gpu = load_profile("gpu")
    assert mistakes(build_workflow(ODD, gpu)) == []
    assert mistakes(build_cron_workflow(ODD, gpu, ("30 1 * * *",), "Europe/Berlin")) == []


def test_job_text_holds_no_double_braces_and_reads_back() -> None:
    text = job_parameter(ODD)
    assert "{{" not in text
    assert "}}" not in text
    assert Job.model_validate(yaml.safe_load(text)) == ODD


def test_same_job_renders_the_same_workflow_name_and_another_another() -> None:
    names = [_name(build_workflow(job, load_profile("gpu"))) for job in (JOB, JOB, ODD)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": "./a.parquet"},
        {"output": "/data"},
        {"output": "file:///data"},
        {"model": {"id": "./model"}},
        {"batch": {"tuning": "tuning.yaml"}},
    ],
)
def test_job_that_names_this_machine_is_refused(change: dict[str, object]) -> None:
    job = Job.model_validate(JOB.model_dump() | change)
    with pytest.raises(BadInput, match="machine"):
        render_manifests(job)


def _name(workflow: dict[str, Any]) -> str:
    return str(workflow["metadata"]["name"])
