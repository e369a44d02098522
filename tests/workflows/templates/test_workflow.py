"""What runs a job: once, or on a schedule."""

import base64
import subprocess
from typing import Any

import pytest
import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow import (
    build_cron_workflow,
    build_workflow,
    job_parameter,
    render_manifests,
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


def test_job_that_no_pod_could_be_started_with_is_refused() -> None:
    def job_of(templates: int) -> Job:
        choices = "|".join("a" * 99 for _ in range(10))
        prompts = {"template": tuple(f"{number} {{{choices}}}" for number in range(templates))}
        return Job.model_validate(JOB.model_dump() | {"prompts": prompts})

    with pytest.raises(BadInput, match=r"`prompts\.wildcards`"):
        build_workflow(job_of(80), load_profile("gpu"))
    text = base64.b64encode(job_parameter(job_of(75)).encode()).decode()
    subprocess.run(["true"], env={"IMAGEKILN_JOB": text}, check=True)


HUB = {"id": "org/model"}


@pytest.mark.parametrize(
    "change",
    [
        {"encoding": {"kind": "webp"}},
        {"encoding": {"kind": "jpeg"}},
        {"scores": {"a": {"kind": "clip_score", **HUB}}},
        {"scores": {"a": {"kind": "reward", **HUB}}},
        {"scores": {"a": {"kind": "aesthetic", **HUB, "head": "/opt/head.safetensors"}}},
        {"scores": {"a": {"kind": "classifier", **HUB, "label": "nsfw"}}},
        {"scores": {"a": {"kind": "own", "entry": "my_package:score"}}},
        {"passes": {"a": {"kind": "upscale", **HUB}}},
        {"passes": {"a": {"kind": "refine"}}},
        {"passes": {"a": {"kind": "refine", "sampler": "euler", "model": HUB}}},
        {"passes": {"a": {"kind": "caption", **HUB}}},
    ],
)
def test_settings_of_each_kind_reach_the_pods(change: dict[str, object]) -> None:
    job = Job.model_validate(JOB.model_dump() | change)
    assert Job.model_validate(yaml.safe_load(job_parameter(job))) == job


def test_same_job_renders_the_same_workflow_name_and_another_another() -> None:
    names = [_name(build_workflow(job, load_profile("gpu"))) for job in (JOB, JOB, ODD)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": "./a.parquet"},
        {"output": "/data"},
        {"output": "file:///data"},
        {"batch": {"tuning": "tuning.yaml"}},
        {"export": [{"to": "copies"}]},
    ],
)
def test_job_that_names_this_machine_is_refused(change: dict[str, object]) -> None:
    job = Job.model_validate(JOB.model_dump() | change)
    with pytest.raises(BadInput, match="machine"):
        render_manifests(job)


def _name(workflow: dict[str, Any]) -> str:
    return str(workflow["metadata"]["name"])
