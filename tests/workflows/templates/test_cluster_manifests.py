"""The shipped manifests of a cluster are what Kubernetes takes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from imagekiln.workflows.cli.local import tune
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from imagekiln.workflows.templates.yaml import to_yaml
from tests.workflows.argo_pods import containers, pods
from tests.workflows.argo_schemas import mistakes

CLUSTER = Path(__file__).parents[3] / "workflows" / "cluster"


@pytest.mark.parametrize("overlay", ["whole-cluster", "own-namespace"])
def test_manifests_of_the_cluster_are_what_kubernetes_takes(overlay: str, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which puts the manifests together, is not installed")
    command: list[str | Path] = [kubectl, "kustomize", CLUSTER / "overlays" / overlay]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    manifests = list(yaml.safe_load_all(built))
    argo = [manifest for manifest in manifests if manifest["apiVersion"].startswith("argoproj.io/")]
    assert [mistakes(manifest) for manifest in argo] == [[]]

    file = tmp_path / "built.yaml"
    others = [manifest for manifest in manifests if manifest not in argo]
    file.write_text(yaml.safe_dump_all(others), encoding="utf-8")
    _require_valid(file)


def test_settings_of_a_controller_are_those_that_argo_3_6_starts_with() -> None:
    file = CLUSTER / "overlays/own-namespace/controller.yaml"
    assert set(yaml.safe_load(file.read_text(encoding="utf-8"))["data"]) == {"retentionPolicy"}


def test_batches_that_give_way_still_make_a_pool_grow() -> None:
    text = (CLUSTER / "base/priority.yaml").read_text(encoding="utf-8")
    values = {
        priority["metadata"]["name"]: priority["value"] for priority in yaml.safe_load_all(text)
    }
    assert -10 <= values["imagekiln-batch"] < 0, (
        "below -10, cluster autoscalers take pods for expendable"
    )


def test_pod_that_tunes_is_locked_down_and_calls_an_existing_command() -> None:
    file = CLUSTER / "gpus/tune.yaml"
    _require_valid(file)
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


def _require_valid(file: Path) -> None:
    command: list[str | Path] = [
        Path(sys.executable).with_name("kubernetes-validate"),
        "--strict",
        file,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_kustomize_sets_the_images_of_a_rendered_template(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which puts the manifests together, is not installed")
    digest = f"sha256:{'0a' * 32}"
    template = build_workflow_template(load_profile("cached-claim"), "images")
    (tmp_path / "template.yaml").write_text(to_yaml(template))
    shutil.copy(CLUSTER / "base" / "images.yaml", tmp_path)
    kustomization = {
        "resources": ["template.yaml"],
        "configurations": ["images.yaml"],
        "images": [{"name": "imagekiln-gpu", "newName": "r.io/gpu", "digest": digest}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))

    command = [kubectl, "kustomize", str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    images = {
        step: containers(pod)["main"]["image"]
        for step, pod in pods(yaml.safe_load(built))
        if step != "further-one"
    }
    assert images["generate"] == images["fetch"] == f"r.io/gpu@{digest}"
    assert images["plan"] == images["aggregate"] == "imagekiln-cpu:0.1.0"
