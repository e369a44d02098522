"""The template of jobs whose finished runs are copied."""

import json
from typing import Any, cast

import pytest
import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.batch import batch_task
from imagekiln.workflows.templates.render import render_manifests
from imagekiln.workflows.templates.workflow import require_reachable_paths
from imagekiln.workflows.templates.workflow_template import (
    build_job_template,
    build_workflow_template,
)
from tests.workflows.argo_schemas import mistakes
from tests.workflows.goldens import JOB, NAMESPACE

EVERY_PROFILE = pytest.mark.parametrize("name", bundled_profiles())


def _parts(profile: Profile, *, exports: bool = True) -> dict[str, Any]:
    template = cast("Any", build_workflow_template(profile, NAMESPACE, exports=exports))
    return {part["name"]: part for part in template["spec"]["templates"]}


def _job(to: str = "s3://exports/postcards", **changes: object) -> Job:
    values = JOB.model_dump() | {"prompts": "s3://prompts/a.parquet"}
    return Job.model_validate(values | {"export": [{"to": to, "format": "webdataset"}]} | changes)


@pytest.mark.quick_cases(3)
@EVERY_PROFILE
def test_template_has_one_step_more_than_the_profile_s_own(name: str) -> None:
    profile = load_profile(name)
    template = build_workflow_template(profile, NAMESPACE, exports=True)
    assert mistakes(template) == []
    plain, parts = _parts(profile, exports=False), _parts(profile)
    assert parts.keys() - plain.keys() == {"export"}
    changed = {"main", "further-one", "plan"}
    assert {each: parts[each] for each in plain.keys() - changed} == {
        each: plain[each] for each in plain.keys() - changed
    }
    assert "--exports" in parts["plan"]["container"]["args"]


def test_export_follows_an_aggregation_that_succeeded_in_a_pod_like_its_own() -> None:
    parts = _parts(load_profile("gpu"))
    tasks = {task["name"]: task for task in parts["main"]["dag"]["tasks"]}
    assert tasks["export"]["depends"] == "aggregate.Succeeded"
    assert parts["export"]["container"]["args"] == [
        "copy",
        "--argo",
        "--run={{inputs.parameters.run}}",
    ]
    for field in ("retryStrategy", "nodeSelector", "podSpecPatch"):
        assert parts["export"].get(field) == parts["aggregate"].get(field)


def test_job_runs_by_the_template_that_exports() -> None:
    printed = [*yaml.safe_load_all(render_manifests(_job(), event=True))]
    assert [each["metadata"]["name"] for each in printed] == ["imagekiln-gpu-export"] * 2
    for task in (batch_task(_job()), batch_task("s3://jobs/a.yaml", exports=True)):
        assert "imagekiln-gpu-export" in json.dumps(task.arguments)
    both = _job(rewrite={"model": {"id": "kiln/writer"}})
    name = cast("Any", build_job_template(both, load_profile("gpu")))["metadata"]["name"]
    assert name == "imagekiln-gpu-rewrite-export"


def test_folder_of_this_machine_is_refused() -> None:
    with pytest.raises(BadInput, match=r"export\[0\]\.to is 'copies', a path on this machine"):
        require_reachable_paths(_job("copies"))
