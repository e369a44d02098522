"""What is rendered: compared whole with golden files, checked against Argo's schemas, and read back as written."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.workflows.cli.local import tune
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.templates import workflow
from imagekiln.workflows.templates.render import render_manifests
from imagekiln.workflows.templates.workflow import (
    build_cron_workflow,
    build_workflow,
    job_parameter,
)
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from imagekiln.workflows.templates.yaml import to_yaml
from tests.workflows.goldens import FOLDER, JOB, NAMESPACE, ODD, goldens

SCHEMAS = Path(__file__).parents[3] / "shared" / "argo"
GOLDEN = dict(goldens())


@cache
def _schema(kind: str) -> Draft202012Validator:
    path = SCHEMAS / f"{kind}.schema.json.gz"
    if not path.is_file():
        pytest.skip(f"Argo's strict schemas are not beside this checkout: {path}")
    return Draft202012Validator(json.loads(gzip.decompress(path.read_bytes())))


def _mistakes(made: dict[str, object]) -> list[str]:
    return [
        f"{error.json_path}: {error.message}"
        for error in _schema(str(made["kind"])).iter_errors(made)
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_rendered_yaml_is_the_golden_file(path: Path) -> None:
    assert path.is_file(), "run make golden, and read what it wrote"
    assert path.read_text(encoding="utf-8") == GOLDEN[path]


def test_no_golden_file_is_left_over() -> None:
    assert set(FOLDER.rglob("*.yaml")) == set(GOLDEN)


@pytest.mark.parametrize("name", bundled_profiles())
def test_every_profiles_template_fits_argos_schema(name: str) -> None:
    assert _mistakes(build_workflow_template(load_profile(name), NAMESPACE)) == []


def test_runs_of_a_job_fit_argos_schemas() -> None:
    gpu = load_profile("gpu")
    assert _mistakes(build_workflow(ODD, gpu)) == []
    assert _mistakes(build_cron_workflow(ODD, gpu, ("30 1 * * *",), "Europe/Berlin")) == []


def test_schemas_refuse_a_field_that_argo_does_not_know() -> None:
    made = build_workflow_template(load_profile("gpu"), NAMESPACE)
    made["spec"] = {**_dict(made["spec"]), "paralelism": 3}
    assert len(_mistakes(made)) == 1


@pytest.mark.parametrize("name", bundled_profiles())
def test_yaml_reads_back_as_what_was_rendered(name: str) -> None:
    made = build_workflow_template(load_profile(name), NAMESPACE)
    assert yaml.safe_load(to_yaml(made)) == made


@pytest.mark.parametrize(
    "text",
    ["1e3", "0x1f", "yes", "null", " a: b ", "a\n\nb\n", "\t", "é", "#", "{{a}}", "", "1_000", "-"],
)
def test_odd_texts_read_back_as_texts(text: str) -> None:
    assert yaml.safe_load(to_yaml({"text": text, "list": [text]})) == {"text": text, "list": [text]}


def test_number_like_text_is_quoted_for_readers_of_newer_yaml() -> None:
    assert to_yaml({"text": "1e3"}) == 'text: "1e3"\n'


def test_job_text_holds_no_double_braces_and_reads_back() -> None:
    text = job_parameter(ODD)
    assert "{{" not in text
    assert "}}" not in text
    assert Job.model_validate(yaml.safe_load(text)) == ODD


def test_same_job_renders_the_same_workflow_name_and_another_another() -> None:
    gpu = load_profile("gpu")
    names = [_dict(build_workflow(job, gpu)["metadata"])["name"] for job in (JOB, JOB, ODD)]
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


def test_rendered_job_is_the_template_and_what_runs_it() -> None:
    kinds = [
        each["kind"]
        for each in yaml.safe_load_all(render_manifests(JOB, ("30 1 * * *",), "Europe/Berlin"))
    ]
    assert kinds == ["WorkflowTemplate", "CronWorkflow"]


def test_no_text_of_a_user_is_pasted_into_a_command() -> None:
    for name in ("gpu", "cached-claim", "gpu-4"):
        for template in _containers(name):
            pasted = [each for each in template["container"]["args"] if "{{" in each]
            assert set(pasted) <= {"{{inputs.parameters.run}}", "{{inputs.parameters.shard}}"}


def test_plan_hands_out_what_further_workflows_take_and_they_draw_with_the_same_image() -> None:
    made = build_workflow_template(load_profile("gpu"), NAMESPACE)
    by_name = {each["name"]: each for each in _dict(made["spec"])["templates"]}
    given = {each["name"] for each in by_name["plan"]["outputs"]["parameters"]}
    wanted = {each["name"] for each in by_name["further"]["inputs"]["parameters"]}
    assert {"parallelism", "priority", "priority_class"} < wanted <= given
    assert (
        "- name: gpu-image\n        value: {{=toJson(workflow.parameters['gpu-image'])}}"
        in (by_name["further-one"]["resource"]["manifest"])
    )


def test_further_workflow_reads_as_it_is_meant_whatever_a_text_holds() -> None:
    made = build_workflow_template(load_profile("gpu"), NAMESPACE)
    further = next(
        each for each in _dict(made["spec"])["templates"] if each["name"] == "further-one"
    )
    run = 's3://bucket/a "b": {c}\'s\n\\ #é'
    values = {
        "workflow.name": "postcards",
        "inputs.parameters.number": "2",
        "inputs.parameters.parallelism": "8",
        "inputs.parameters.priority": "-10",
        "=toJson(inputs.parameters.priority_class)": '""',
        "=toJson(inputs.parameters.run)": json.dumps(run),
        "=toJson(workflow.parameters['gpu-image'])": '"1e3"',
    }
    # Argo replaces each of them in the text, and then reads the text as YAML. 4000 stands for what it works out.
    text = re.sub(
        r"\{\{(.+?)\}\}",
        lambda found: values.get(found[1], "4000"),
        further["resource"]["manifest"],
    )
    read = yaml.safe_load(text)
    assert read["metadata"] == {"name": "postcards-2", "labels": {"imagekiln/part-of": "postcards"}}
    spec = read["spec"]
    assert (spec["parallelism"], spec["priority"], spec["podPriorityClassName"]) == (8, -10, "")
    given = {each["name"]: each["value"] for each in spec["arguments"]["parameters"]}
    assert given == {"run": run, "first": "4000", "count": "4000", "gpu-image": "1e3"}


@pytest.mark.parametrize("name", bundled_profiles())
def test_expressions_in_a_patch_read_the_same_before_and_after_yaml(name: str) -> None:
    # Argo works them out in the text of the patch, and reads that as YAML afterwards.
    for template in _containers(name):
        patch = template["podSpecPatch"]
        main = next(each for each in yaml.safe_load(patch)["containers"] if each["name"] == "main")
        assert f"'{main['resources']['limits']['memory']}'" in patch or "{{" not in patch


@pytest.mark.parametrize("name", bundled_profiles())
def test_every_container_passes_pod_security_restricted_with_a_read_only_root(name: str) -> None:
    for template in _containers(name):
        patch = yaml.safe_load(template["podSpecPatch"])
        own = {each["name"]: each for each in [*patch["initContainers"], *patch["containers"]]}
        for context in (
            template["container"]["securityContext"],
            own["init"]["securityContext"],
            own["wait"]["securityContext"],
        ):
            assert context["readOnlyRootFilesystem"]
            assert context["runAsNonRoot"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_cpu_steps_keep_off_gpu_nodes_and_ask_for_no_gpu() -> None:
    for template in _containers("cached-claim"):
        if template["name"] == "generate":
            continue
        terms = template["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"} in terms[
            "nodeSelectorTerms"
        ][0]["matchExpressions"]
        assert list(template["container"]["resources"]["requests"]) == ["cpu"]
        assert "tolerations" not in template


@pytest.mark.parametrize("overlay", ["whole-cluster", "own-namespace"])
def test_manifests_of_the_cluster_are_what_kubernetes_takes(overlay: str, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which puts the manifests together, is not installed")
    folder = Path(str(workflow.__file__)).resolve().parent / "cluster" / "overlays" / overlay
    built = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=True
    ).stdout
    file = tmp_path / "built.yaml"
    file.write_text(built, encoding="utf-8")
    _taken_by_kubernetes(file)


def test_settings_of_a_controller_are_those_that_argo_3_6_starts_with() -> None:
    file = (
        Path(str(workflow.__file__)).resolve().parent
        / "cluster/overlays/own-namespace/controller.yaml"
    )
    assert set(yaml.safe_load(file.read_text(encoding="utf-8"))["data"]) == {"retentionPolicy"}


def test_batches_that_give_way_still_make_a_pool_grow() -> None:
    file = Path(str(workflow.__file__)).resolve().parent / "cluster/base/priority.yaml"
    values = {
        each["metadata"]["name"]: each["value"]
        for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    }
    assert -10 <= values["imagekiln-batch"] < 0, (
        "below -10, cluster autoscalers take pods for expendable"
    )


def test_pod_that_tunes_is_locked_down_and_calls_a_command_that_there_is() -> None:
    file = Path(str(workflow.__file__)).resolve().parent / "cluster" / "gpus" / "tune.yaml"
    _taken_by_kubernetes(file)
    pod = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["image"] == load_profile("gpu").generate.image
    assert tune.make_context("tune", container["args"][1:]).params["job"] == "s3://jobs/job.yaml"


def _taken_by_kubernetes(file: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("kubernetes-validate"), "--strict", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _containers(profile: str) -> list[dict[str, Any]]:
    made = build_workflow_template(load_profile(profile), NAMESPACE)
    return [each for each in _dict(made["spec"])["templates"] if "container" in each]


def _dict(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
