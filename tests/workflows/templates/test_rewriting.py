"""The template of jobs whose prompts are rewritten before they are planned."""

from typing import Any, cast

import pytest
import yaml

from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.profiles.profile import GpuSharing, Profile
from imagekiln.workflows.templates.workflow import render_manifests
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.workflows.argo_pods import containers, pods
from tests.workflows.goldens import JOB, NAMESPACE

EVERY_PROFILE = pytest.mark.parametrize("name", bundled_profiles())
ADDED = {"rewrite", "fetch-language-model"}


def _template(profile: Profile, *, rewrites: bool = True) -> dict[str, Any]:
    return cast("dict[str, Any]", build_workflow_template(profile, NAMESPACE, rewrites=rewrites))


def _parts(profile: Profile, *, rewrites: bool = True) -> dict[str, Any]:
    templates = _template(profile, rewrites=rewrites)["spec"]["templates"]
    return {part["name"]: part for part in templates}


def _tasks(profile: Profile) -> dict[str, Any]:
    return {task["name"]: task for task in _parts(profile)["main"]["dag"]["tasks"]}


def _job(**changes: object) -> Job:
    values = JOB.model_dump() | {"prompts": "s3://prompts/a.parquet"}
    return Job.model_validate(values | {"rewrite": {"model": {"id": "kiln/writer"}}} | changes)


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_everything_but_the_step_before_planning_is_as_in_the_profile_s_own_template(
    name: str,
) -> None:
    profile = load_profile(name)
    plain = _parts(profile, rewrites=False)
    parts = _parts(profile)
    assert parts.keys() - plain.keys() == ADDED & parts.keys()
    same = plain.keys() - {"main", "further-one"}
    assert {part: parts[part] for part in same} == {part: plain[part] for part in same}
    # A child workflow is one of the same template.
    own = f"imagekiln-{name}"
    further = plain["further-one"]["resource"]["manifest"]
    assert parts["further-one"]["resource"]["manifest"] == further.replace(own, f"{own}-rewrite")


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_pods_that_rewrite_are_like_those_that_generate_with_one_gpu(name: str) -> None:
    profile = load_profile(name)
    one_gpu = profile.model_copy(update={"gpu": profile.gpu.model_copy(update={"count": 1})})
    generate = _parts(one_gpu)["generate"]
    rewrite = _parts(profile)["rewrite"]
    for field in ("retryStrategy", "tolerations", "nodeSelector", "affinity", "podSpecPatch"):
        assert rewrite.get(field) == generate.get(field)
    assert rewrite.get("volumes") == generate.get("volumes")
    for field in ("image", "resources", "volumeMounts"):
        assert rewrite["container"].get(field) == generate["container"].get(field)
    assert rewrite["metadata"]["labels"]["imagekiln.dev/step"] == "rewrite"
    command = rewrite["container"]["args"]
    assert command[command.index("--device") + 1] == profile.gpu.device


def test_rewriting_comes_before_planning_unless_a_run_is_retried() -> None:
    tasks = _tasks(load_profile("gpu"))
    assert tasks["rewrite"]["when"] == "{{=workflow.parameters.retry != 'true'}}"
    assert tasks["plan"]["depends"] == "(rewrite.Succeeded || rewrite.Skipped)"
    assert "fetch-language-model" not in tasks


def test_one_pod_fills_a_shared_cache_for_those_that_rewrite() -> None:
    profile = load_profile("cached-claim")
    tasks = _tasks(profile)
    fetched = "(fetch-language-model.Succeeded || fetch-language-model.Skipped)"
    assert tasks["rewrite"]["depends"] == fetched
    made = dict(pods(_template(profile)))
    env = containers(made["rewrite"])["main"]["env"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in env
    mounts = containers(made["rewrite"])["main"]["volumeMounts"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in mounts
    fetch = containers(made["fetch-language-model"])["main"]
    assert fetch["args"] == ["rewrite", "--argo", "--fetch"]
    assert fetch["image"] == profile.generate.image
    assert not any(mount.get("readOnly") for mount in fetch["volumeMounts"])


def test_batches_that_share_gpus_share_them_for_rewriting_too() -> None:
    sharing = GpuSharing(semaphore="gpu", mutex="images")
    parts = _parts(load_profile("gpu").model_copy(update={"sharing": sharing}))
    both = parts["generate"]["synchronization"] | parts["shards"]["synchronization"]
    assert parts["rewrite"]["synchronization"] == both


def test_render_prints_the_template_that_a_job_needs() -> None:
    printed = [*yaml.safe_load_all(render_manifests(_job(), event=True))]
    names = [manifest["metadata"]["name"] for manifest in printed]
    assert names == ["imagekiln-gpu-rewrite"] * 2
    assert printed[1]["spec"]["submit"]["workflowTemplateRef"]["name"] == names[0]
