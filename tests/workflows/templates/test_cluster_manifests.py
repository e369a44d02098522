"""The shipped manifests of a cluster are what Kubernetes takes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagekiln.workflows.cli.local import tune
from imagekiln.workflows.doctor.check_profile import get_quantities, usage_by_step
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from imagekiln.workflows.templates.yaml import to_yaml
from tests.cluster.rbac import OPERATIONS, shipped_rights
from tests.workflows.argo_pods import containers, pods
from tests.workflows.argo_schemas import mistakes

CLUSTER = Path(__file__).parents[3] / "workflows" / "cluster"
CONTROLLERS = ("workflow-controller", "argo-workflows-workflow-controller")


@pytest.mark.quick_cases(1)
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


def test_every_verb_of_a_role_has_an_operation_that_needs_it() -> None:
    rights = list(shipped_rights())
    assert {right.key for right in rights} == set(OPERATIONS)
    assert len(rights) == len(OPERATIONS), "a right is granted twice"


def test_no_role_reads_secrets_runs_commands_in_pods_or_grants_rights() -> None:
    refused = {
        "*",
        "secrets",
        "pods/exec",
        "pods/attach",
        "pods/portforward",
        "serviceaccounts/token",
    }
    for right in shipped_rights():
        assert right.resource not in refused
        assert right.verb not in ("*", "bind", "escalate", "impersonate")
        assert right.group != "rbac.authorization.k8s.io"


def test_no_account_has_a_right_in_the_namespace_of_another_tenant() -> None:
    manifests = [
        manifest
        for file in CLUSTER.rglob("*.yaml")
        if file.name != "prometheus.yaml"  # whose account is the administrator's
        for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if manifest and str(manifest.get("kind")).endswith("Binding")
    ]
    subjects = [subject for manifest in manifests for subject in manifest.get("subjects", ())]
    assert subjects
    assert all(set(subject) == {"kind", "name"} for subject in subjects)
    wide = {item["metadata"]["name"] for item in manifests if item["kind"] == "ClusterRoleBinding"}
    assert wide == {"imagekiln-doctor"}

    of_the_cluster = {
        "namespaces", "nodes", "priorityclasses", "runtimeclasses", "deviceclasses",
        "resourceslices",
    }  # fmt: skip
    seen_elsewhere = {"daemonsets": (), "deployments": CONTROLLERS}
    for right in shipped_rights():
        if right.role in wide and right.resource not in of_the_cluster:
            assert right.verb == "list"
            assert right.names == seen_elsewhere[right.resource]


@pytest.mark.parametrize("file", ["tune.yaml", "warm-node.yaml"])
def test_pod_that_asks_nothing_of_kubernetes_has_no_token(file: str) -> None:
    (pod,) = (
        manifest["spec"]["template"]["spec"]
        for manifest in read_gpu_manifests(file)
        if manifest["kind"] in ("Job", "Deployment")
    )
    assert pod["automountServiceAccountToken"] is False


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


def read_gpu_manifests(name: str) -> list[dict[str, Any]]:
    text = (CLUSTER / "gpus" / name).read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def test_queue_of_the_example_is_that_of_the_profile_and_covers_all_that_its_pods_request() -> None:
    manifests = {each["kind"]: each for each in read_gpu_manifests("kueue.yaml")}
    profile = load_profile("kueue")
    assert profile.queue is not None
    local = manifests["LocalQueue"]
    assert local["metadata"]["name"] == profile.queue.name
    queue = manifests["ClusterQueue"]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]

    (group,) = queue["spec"]["resourceGroups"]
    usage = usage_by_step(profile)["generate"]
    prefix = "requests."
    requests = {key.removeprefix(prefix): usage[key] for key in usage if key.startswith(prefix)}
    assert set(requests) == set(group["coveredResources"])
    for flavor in group["flavors"]:
        quotas = {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
        amounts = get_quantities({"quotas": quotas}, "quotas")
        pods = amounts["nvidia.com/gpu"]
        short = {name for name, amount in requests.items() if amount * pods > amounts[name]}
        assert not short, f"{flavor['name']} has fewer of these than its {pods} GPUs need"


def test_warm_node_gives_way_to_urgent_batches_and_makes_a_pool_grow() -> None:
    _require_valid(CLUSTER / "gpus/warm-node.yaml")
    priority, deployment = read_gpu_manifests("warm-node.yaml")
    assert -10 <= priority["value"] < 0
    pod = deployment["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == priority["metadata"]["name"]
    assert pod["containers"][0]["image"] == load_profile("gpu").generate.image


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
