"""What a profile and a job name on the cluster."""

import pytest

from imagekiln.steps.job.reader import validate_job
from imagekiln.workflows.doctor.check_profile import (
    check_image_volume,
    check_model_claim,
    check_priority_class,
    check_queue,
    check_runtime_class,
    check_semaphore,
    check_template,
    job_priority_classes,
)
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.jobs import SHAPES
from tests.kube import ARGO, CORE, Kube

GPU = load_profile("gpu")
CONFIG = f"{CORE}/configmaps"
TEMPLATE = f"{ARGO}/workflowtemplates/imagekiln-gpu"
JOB = validate_job(
    {"name": "a", "prompts": "s3://a/b.csv", "output": "s3://a", "model": {"id": "bundled:shapes"}}
)
CLAIMS = f"{CORE}/persistentvolumeclaims"


def test_template_of_a_job_that_rewrites_prompts_is_its_own(kube: Kube) -> None:
    kube.objects[TEMPLATE] = build_workflow_template(GPU, "imagekiln")
    rewriting = validate_job(JOB.model_dump() | {"rewrite": {"model": {"id": "kiln/writer"}}})
    assert "-rewrite is not registered yet" in check_template(kube.view(), rewriting, GPU).says
    own = build_workflow_template(GPU, "imagekiln", rewrites=True)
    kube.objects[f"{TEMPLATE}-rewrite"] = own
    finding = check_template(kube.view(), rewriting, GPU)
    assert finding.says == "WorkflowTemplate imagekiln-gpu-rewrite is registered and up to date."


def test_template_of_another_version_is_wrong(kube: Kube) -> None:
    kube.objects[TEMPLATE] = build_workflow_template(load_profile("gpu-4"), "imagekiln")
    finding = check_template(kube.view(), JOB, GPU)
    assert (finding.verdict, finding.remedy) == ("wrong", "Run `imagekiln apply JOB`.")


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("v1.32.9", "wrong"), ("v1.33.0-gke.1", "unknown"), ("v1.35.0", "ok")],
)
def test_models_in_an_image_need_kubernetes_1_35_or_a_feature_gate_before(
    kube: Kube, version: str, verdict: str
) -> None:
    kube.version = version
    assert check_image_volume(kube.view()).verdict == verdict


def test_missing_priority_class_is_wrong(kube: Kube) -> None:
    finding = check_priority_class(kube.view(), "first")
    assert finding.verdict == "wrong"
    assert finding.says == "PriorityClass first does not exist."
    assert finding.remedy == (
        "Create it, name one that exists in `cluster.priority_class` or in the profile's "
        "`priority_class`, or apply cluster/base/priority.yaml, which `imagekiln manifests "
        "cluster` writes, for imagekiln-batch and imagekiln-urgent."
    )


def test_priority_class_of_the_job_is_checked() -> None:
    values = {"name": "a", "prompts": "s3://p/*.parquet", "output": "s3://o", "model": SHAPES}
    job = validate_job(values | {"cluster": {"priority_class": "imagekiln-batch"}})
    assert job_priority_classes(job, GPU) == ["imagekiln-batch"]


def test_missing_runtime_class_is_wrong(kube: Kube) -> None:
    assert check_runtime_class(kube.view(), "nvidia").verdict == "wrong"
    kube.put("apis/node.k8s.io/v1/runtimeclasses", "nvidia")
    assert check_runtime_class(kube.view(), "nvidia").verdict == "ok"


@pytest.mark.parametrize(
    ("phase", "mode", "verdict"),
    [
        ("Bound", "ReadWriteMany", "ok"),
        ("Bound", "ReadWriteOnce", "wrong"),
        ("Pending", "ReadWriteMany", "unknown"),
        ("Lost", "ReadWriteMany", "wrong"),
    ],
)
def test_model_cache_must_be_bound_and_shared(
    kube: Kube, phase: str, mode: str, verdict: str
) -> None:
    kube.put(CLAIMS, "imagekiln-models", spec={"accessModes": [mode]}, status={"phase": phase})
    assert check_model_claim(kube.view(), "imagekiln-models").verdict == verdict


def test_semaphore_of_the_shipped_manifests_is_ok(kube: Kube) -> None:
    assert check_semaphore(kube.view(), "gpu").says == "16 pods at once, over all batches."


@pytest.mark.parametrize("data", [{}, {"gpu": "many"}])
def test_semaphore_without_a_number_is_wrong(kube: Kube, data: dict[str, str]) -> None:
    kube.put(CONFIG, "imagekiln-gpus", data=data)
    finding = check_semaphore(kube.view(), "gpu")
    assert finding.verdict == "wrong"
    assert finding.says == "ConfigMap imagekiln-gpus has no number in gpu."


def test_semaphore_of_another_namespace_is_named_but_not_read(kube: Kube) -> None:
    finding = check_semaphore(kube.view(), "gpu", "platform")
    assert finding.verdict == "unknown"
    assert "-n platform" in str(finding.remedy)


QUEUES = "apis/kueue.x-k8s.io/v1beta2/namespaces/imagekiln/localqueues"


def test_queue_must_exist_and_be_active(kube: Kube) -> None:
    assert check_queue(kube.view(), "imagekiln").verdict == "wrong"

    condition = {"type": "Active", "status": "False", "message": "Can't find ClusterQueue images"}
    kube.put(QUEUES, "imagekiln", status={"conditions": [condition]})
    finding = check_queue(kube.view(), "imagekiln")
    assert finding.verdict == "wrong"
    assert "Can't find ClusterQueue images" in finding.says

    kube.put(QUEUES, "imagekiln", status={"conditions": [condition | {"status": "True"}]})
    assert check_queue(kube.view(), "imagekiln").verdict == "ok"
