"""The template of a profile, and the pods that Argo makes of it."""

import json
import re
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest
import yaml

from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.security import TOKEN_FOLDER
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.workflows.argo_pods import (
    RESTRICTED,
    Object,
    containers,
    pods,
    with_defaults,
)
from tests.workflows.argo_schemas import mistakes
from tests.workflows.goldens import NAMESPACE

EVERY_PROFILE = pytest.mark.parametrize("name", bundled_profiles())
NODE_LABELS = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_every_profiles_template_fits_argos_schema(name: str) -> None:
    assert mistakes(_template(name)) == []


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_every_pod_that_argo_makes_is_one_that_kubernetes_takes(name: str) -> None:
    for pod in _pods(name).values():
        evaluated = yaml.safe_load(re.sub(r"\{\{.+?\}\}", "4000", yaml.safe_dump(pod, width=2**31)))
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": evaluated}
        kubernetes_validate.validate(manifest, "1.34", strict=True)


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_every_container_passes_pod_security_restricted_with_a_read_only_root(name: str) -> None:
    for pod in _all_pods(name).values():
        assert pod["securityContext"]["runAsUser"] == 1000
        for container in containers(pod).values():
            assert container["securityContext"] == RESTRICTED


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_only_argos_own_containers_have_a_token_of_kubernetes(name: str) -> None:
    for step, pod in _all_pods(name).items():
        mounted = {
            container
            for container, fields in containers(pod).items()
            for mount in fields.get("volumeMounts", ())
            if mount["mountPath"] == TOKEN_FOLDER or mount["name"] == "argo-token"
        }
        if step == "further-one":  # whose containers are all Argo's
            assert pod["automountServiceAccountToken"]
            continue
        assert pod["automountServiceAccountToken"] is False
        assert mounted == {"init", "wait"}
        (volume,) = (item for item in pod["volumes"] if item["name"] == "argo-token")
        (token, *_) = volume["projected"]["sources"]
        assert token["serviceAccountToken"]["expirationSeconds"] <= 3600


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_every_container_has_a_memory_limit_and_every_step_a_request_of_cpu(name: str) -> None:
    for pod in _pods(name).values():
        for container in containers(pod).values():
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]


def test_exit_handler_finds_a_node_where_the_other_steps_find_none() -> None:
    profile = load_profile("gpu")
    vast = profile.steps.model_copy(update={"cpu": 500, "memory": 4000, "disk": 9000})
    template = build_workflow_template(profile.model_copy(update={"steps": vast}), NAMESPACE)
    resources = {
        step: containers(pod)["main"]["resources"] for step, pod in pods(cast("Object", template))
    }
    assert resources["plan"]["requests"]["cpu"] == "500000m"
    for step in ("report", "publish-report"):
        limits = resources[step]["limits"]
        assert resources[step]["requests"] == {"cpu": "100m"}
        assert limits["memory"].endswith(" : 512}}Mi")
        assert limits["ephemeral-storage"] == "2048Mi"


COMMON = {"HOME": "/home", "HF_HOME": "/hub", "IMAGEKILN_LOG": "text"}


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("of_generate", [{}, {"HF_HOME": "/hub"}, COMMON])
@pytest.mark.parametrize("of_steps", [{}, {"IMAGEKILN_LOG": "text"}, COMMON])
@pytest.mark.parametrize("name", ["gpu", "cached-claim", "cached-node"])
def test_every_variable_has_one_value_and_that_of_the_profile(
    name: str, of_steps: dict[str, str], of_generate: dict[str, str]
) -> None:
    profile = load_profile(name)
    steps = profile.steps.model_copy(update={"env": profile.steps.env | of_steps})
    generate = profile.generate.model_copy(update={"env": profile.generate.env | of_generate})
    made = _pods_of(profile.model_copy(update={"steps": steps, "generate": generate}))
    for step, pod in made.items():
        if step == "further-one":
            continue
        variables = containers(pod)["main"]["env"]
        assert all(("value" in item) != ("valueFrom" in item) for item in variables)
        by_name = {item["name"]: item.get("value") for item in variables}
        assert len(by_name) == len(variables)
        expected = of_generate if step == "generate" else of_steps
        assert by_name.keys() >= COMMON.keys()
        assert by_name.items() >= expected.items()


def test_run_may_name_images_of_its_own() -> None:
    template = build_workflow_template(load_profile("cached-claim"), NAMESPACE)
    images = {"cpu-image": "r.io/cpu@sha256:" + "a" * 64, "gpu-image": "r.io/gpu:2"}
    chosen = {step: containers(pod)["main"]["image"] for step, pod in pods(template, images)}
    gpu = images["gpu-image"]
    cpu = images["cpu-image"]
    executor = chosen.pop("further-one")
    assert "argoexec" in executor
    assert {step for step, image in chosen.items() if image == gpu} == {"generate", "fetch"}
    assert {step for step, image in chosen.items() if image == cpu} == {
        "plan", "aggregate", "export", "report", "publish-report"
    }  # fmt: skip


@pytest.mark.parametrize("disk", [None, 30])
def test_disk_is_requested_and_limits_the_scratch_folder(disk: float | None) -> None:
    profile = load_profile("gpu")
    generate = profile.generate.model_copy(update={"disk": disk})
    pod = _pods_of(profile.model_copy(update={"generate": generate}))["generate"]
    (scratch,) = [volume for volume in pod["volumes"] if volume["name"] == "tmp"]
    limits = containers(pod)["main"]["resources"]["limits"]
    if disk is None:
        assert scratch["emptyDir"] == {}
        assert "ephemeral-storage" not in limits
    else:
        assert scratch["emptyDir"] == {"sizeLimit": "30720Mi"}
        assert limits["ephemeral-storage"] == "31744Mi"  # with a log, and Argo's own program


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_only_pods_are_retried_never_a_whole_dag(name: str) -> None:
    spec = _template(name)["spec"]
    assert "retryStrategy" not in spec
    for template in spec["templates"]:
        is_pod = "container" in template or "resource" in template
        # Without a strategy, `retries` in a pod's patch and environment would mean nothing.
        assert ("retryStrategy" in with_defaults(template, spec)) == is_pod


def test_settings_of_the_cpu_steps_stay_theirs() -> None:
    profile = load_profile("gpu")
    changes = {"env": {"A": "1"}, "disk": 10, "hours": 1, "runtime_class": "slow", "cpu": 3}
    changes |= {"node_selector": {"pool": "cpu"}, "priority_class": "low", "shared_memory": 1}
    steps = profile.steps.model_copy(update=changes)
    changed = _pods_of(profile.model_copy(update={"steps": steps}))
    assert changed["generate"] == {
        **_pods("gpu")["generate"],
        "activeDeadlineSeconds": profile.generate.hours * 3600,
    }
    plan = changed["plan"]
    assert plan["activeDeadlineSeconds"] == 3600
    assert plan["runtimeClassName"] == "slow"
    assert plan["nodeSelector"] == {"pool": "cpu"}
    assert plan["priorityClassName"] == "low"
    assert {"name": "tmp", "emptyDir": {"sizeLimit": "10240Mi"}} in plan["volumes"]
    assert {"name": "A", "value": "1"} in containers(plan)["main"]["env"]
    assert containers(plan)["main"]["resources"]["requests"]["cpu"] == "3000m"


@pytest.mark.quick_cases(6)
@EVERY_PROFILE
def test_no_step_gets_a_secret_that_it_does_not_use(name: str) -> None:
    storage = {"s3-credentials"}
    secrets = {
        "plan": storage | {"huggingface"},
        "fetch": storage | {"huggingface"},
        "generate": storage | {"huggingface", "imagekiln-c2pa"},
        "rewrite": storage | {"huggingface"},
        "fetch-language-model": storage | {"huggingface"},
        "aggregate": storage,
        "export": storage,
        "report": {"imagekiln-webhook"},
        "publish-report": storage,
        "further-one": set[str](),
    }
    for step, pod in _all_pods(name).items():
        assert _secrets(pod) == secrets[step]


def test_notification_links_to_the_node_that_has_the_report() -> None:
    templates = {template["name"]: template for template in _template("gpu")["spec"]["templates"]}
    *_, option = templates["report"]["container"]["args"]
    place, _, task = option.removeprefix("--report-node=").rpartition(".")
    dag = templates[{"": "main", "onExit": "finish"}[place]]["dag"]
    (template,) = [node["template"] for node in dag["tasks"] if node["name"] == task]
    artifacts = templates[template]["outputs"]["artifacts"]
    assert [artifact["name"] for artifact in artifacts] == ["report"]


def _secrets(pod: Object) -> set[str]:
    """The Secrets that a pod has, by whatever container, way and key."""
    names: set[str] = set()
    for container in containers(pod).values():
        sources = [variable.get("valueFrom", {}) for variable in container.get("env", [])]
        names |= {source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source}
        whole = container.get("envFrom", [])
        names |= {source["secretRef"]["name"] for source in whole if "secretRef" in source}
    volumes = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    return names | {secret["secretName"] for secret in volumes}


def _pods(profile: str) -> dict[str, Object]:
    return _pods_of(load_profile(profile))


def _pods_of(profile: Profile) -> dict[str, Object]:
    return dict(pods(build_workflow_template(profile, NAMESPACE)))


def _all_pods(profile: str) -> dict[str, Object]:
    """With those that rewrite prompts: all others are in that template too."""
    template = build_workflow_template(load_profile(profile), NAMESPACE, rewrites=True)
    return dict(pods(template))


def _template(profile: str) -> dict[str, Any]:
    return build_workflow_template(load_profile(profile), NAMESPACE)


def test_exit_handler_cannot_fail_the_workflow() -> None:
    template = cast("dict[str, Any]", build_workflow_template(load_profile("gpu"), "images"))
    templates = {part["name"]: part for part in template["spec"]["templates"]}
    tasks = templates[template["spec"]["onExit"]]["dag"]["tasks"]
    assert [task["name"] for task in tasks] == ["report", "publish-report"]
    # Argo's controller exits where a task of the exit handler waits for `parallelism`.
    assert [task.get("dependencies") for task in tasks] == [None, ["report"]]
    for task in tasks:
        assert task["continueOn"] == {"failed": True, "error": True}
        assert templates[task["template"]]["timeout"], "it also ends a pod that finds no node"


def own_template(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "own.yaml"
    path.write_text(f"description: Ours\n{text}")
    return {
        part["name"]: part
        for part in cast("Any", build_workflow_template(load_profile(str(path)), NAMESPACE))[
            "spec"
        ]["templates"]
    }


def test_kueue_admits_the_pods_with_gpus_and_no_others(tmp_path: Path) -> None:
    text = "queue: {name: research, priority_class: nightly}\n"
    labels = {
        name: part.get("metadata", {}).get("labels", {})
        for name, part in own_template(tmp_path, text).items()
    }
    queued = {name for name in labels if "kueue.x-k8s.io/queue-name" in labels[name]}
    assert queued == {"generate"}
    assert labels["generate"]["kueue.x-k8s.io/queue-name"] == "research"
    assert labels["generate"]["kueue.x-k8s.io/priority-class"] == "nightly"


def test_teams_share_a_semaphore_or_a_mutex_of_another_namespace(tmp_path: Path) -> None:
    text = "sharing: {semaphore: gpu, mutex: images, namespace: platform}\n"
    parts = own_template(tmp_path, text)
    (semaphore,) = parts["generate"]["synchronization"]["semaphores"]
    (mutex,) = parts["shards"]["synchronization"]["mutexes"]
    assert semaphore["namespace"] == mutex["namespace"] == "platform"


def test_switches_of_a_profile_reach_the_template() -> None:
    changes = {"archive_logs": True, "report_artifact": False, "disruption_budget": True}
    for profile in (load_profile("gpu"), load_profile("gpu").model_copy(update=changes)):
        template = cast("dict[str, Any]", build_workflow_template(profile, "images"))
        spec = template["spec"]
        assert spec["archiveLogs"] is profile.archive_logs
        assert ("publish-report" in json.dumps(spec)) is profile.report_artifact
        budget = {"minAvailable": 9999} if profile.disruption_budget else None
        assert spec.get("podDisruptionBudget") == budget
