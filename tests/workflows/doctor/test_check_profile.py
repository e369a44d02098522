"""What a profile and a job name on the cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.workflows.doctor.check import DoctorCheck, Needs
from imagekiln.workflows.doctor.check_profile import (
    DEFAULT_REPOSITORY_ANNOTATION,
    check_artifact_repository,
    check_image_volume,
    check_limit_ranges,
    check_model_claim,
    check_priority_classes,
    check_queue,
    check_resource_quota,
    check_runtime_classes,
    check_semaphore,
    check_template,
)
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.kube import ARGO, CORE, Kube

CONFIG = f"{CORE}/configmaps"
CLAIMS = f"{CORE}/persistentvolumeclaims"
LIMIT_RANGES = f"{CORE}/limitranges"
QUOTAS = f"{CORE}/resourcequotas"
QUEUES = "apis/kueue.x-k8s.io/v1beta2/namespaces/imagekiln/localqueues"
TEMPLATE = f"{ARGO}/workflowtemplates/imagekiln-gpu"
Check = Callable[[Needs], DoctorCheck | None]


@pytest.fixture
def own(kube: Kube, tmp_path: Path) -> Callable[[Check, str], DoctorCheck]:
    """Make a check for a profile with this setting."""

    def find(check: Check, setting: str) -> DoctorCheck:
        assert check(kube.needs()) is None, "the profile gpu has no such setting"
        profile = tmp_path / "own.yaml"
        profile.write_text(f"description: Ours\n{setting}\n")
        finding = check(kube.needs(profile))
        assert finding is not None
        return finding

    return find


Own = Callable[[Check, str], DoctorCheck]


def test_template_of_a_job_that_rewrites_prompts_is_its_own(kube: Kube) -> None:
    gpu = load_profile("gpu")
    kube.objects[TEMPLATE] = build_workflow_template(gpu, "imagekiln")
    rewriting = kube.needs(rewrite={"model": {"id": "kiln/writer"}})
    assert "-rewrite is not registered yet" in check_template(rewriting).says
    kube.objects[f"{TEMPLATE}-rewrite"] = build_workflow_template(gpu, "imagekiln", rewrites=True)
    finding = check_template(rewriting)
    assert finding.says == "WorkflowTemplate imagekiln-gpu-rewrite is registered and up to date."


def test_template_of_another_version_is_wrong(kube: Kube) -> None:
    kube.objects[TEMPLATE] = build_workflow_template(load_profile("gpu-4"), "imagekiln")
    finding = check_template(kube.needs())
    assert (finding.verdict, finding.remedy) == ("wrong", "Run `imagekiln apply JOB`.")


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("v1.32.9", "wrong"), ("v1.33.0-gke.1", "unknown"), ("v1.35.0", "ok")],
)
def test_models_in_an_image_need_kubernetes_1_35_or_a_feature_gate_before(
    kube: Kube, own: Own, version: str, verdict: str
) -> None:
    kube.version = version
    assert own(check_image_volume, "cache: {image: registry/models:1}").verdict == verdict


def test_classes_that_pods_name_must_exist(kube: Kube, own: Own) -> None:
    finding = own(check_runtime_classes, "generate: {runtime_class: nvidia}")
    assert (finding.verdict, finding.says) == ("wrong", "RuntimeClass nvidia does not exist.")
    kube.put("apis/node.k8s.io/v1/runtimeclasses", "nvidia")
    assert own(check_runtime_classes, "steps: {runtime_class: nvidia}").verdict == "ok"

    finding = own(check_priority_classes, "generate: {priority_class: first}")
    assert (finding.verdict, finding.says) == ("wrong", "PriorityClass first does not exist.")
    of_the_job = check_priority_classes(kube.needs(cluster={"priority_class": "imagekiln-batch"}))
    assert of_the_job is not None
    assert of_the_job.says == "PriorityClass imagekiln-batch exists."


@pytest.mark.parametrize(
    ("phase", "mode", "verdict"),
    [
        ("Bound", "ReadWriteMany", "ok"),
        ("Bound", "ReadWriteOnce", "wrong"),
        ("Pending", "ReadWriteMany", "unknown"),
    ],
)
def test_model_cache_must_be_bound_and_shared(
    kube: Kube, own: Own, phase: str, mode: str, verdict: str
) -> None:
    assert "does not exist" in own(check_model_claim, "cache: {claim: models}").says
    kube.put(CLAIMS, "models", spec={"accessModes": [mode]}, status={"phase": phase})
    assert own(check_model_claim, "cache: {claim: models}").verdict == verdict


def test_semaphore_must_have_a_number(kube: Kube, own: Own) -> None:
    shared = "sharing: {semaphore: gpu}"
    assert own(check_semaphore, shared).says == "16 pods at once, over all batches."
    for data in ({}, {"gpu": "many"}):
        kube.put(CONFIG, "imagekiln-gpus", data=data)
        finding = own(check_semaphore, shared)
        says = "ConfigMap imagekiln-gpus has no number in gpu."
        assert (finding.verdict, finding.says) == ("wrong", says)


def test_queue_must_exist_and_be_active(kube: Kube, own: Own) -> None:
    assert own(check_queue, "queue: {name: images}").verdict == "wrong"
    condition = {"type": "Active", "status": "False", "message": "Can't find ClusterQueue images"}
    kube.put(QUEUES, "images", status={"conditions": [condition]})
    finding = own(check_queue, "queue: {name: images}")
    assert (finding.verdict, "Can't find ClusterQueue images" in finding.says) == ("wrong", True)
    kube.put(QUEUES, "images", status={"conditions": [condition | {"status": "True"}]})
    assert own(check_queue, "queue: {name: images}").verdict == "ok"


@pytest.mark.parametrize("profile", ["gpu", "h200"])
def test_shipped_quota_has_room_for_the_default_parallelism(kube: Kube, profile: str) -> None:
    finding = check_resource_quota(kube.needs(profile))
    assert (finding.verdict, finding.says) == ("ok", "Room for 16 GPU pods at once.")


@pytest.mark.parametrize(
    ("key", "hard"),
    [
        ("cpu", "4"),  # 4 and Argo's own 20m
        ("limits.memory", "24820Mi"),  # 24 GiB and 244 MiB, where Argo's own container has 256
    ],
)
def test_quota_that_no_pod_fits_into_is_wrong(kube: Kube, key: str, hard: str) -> None:
    kube.put(QUOTAS, "imagekiln", spec={"hard": {key: hard}})
    finding = check_resource_quota(kube.needs())
    assert finding.verdict == "wrong"
    assert finding.says.startswith("Quota imagekiln never admits a pod of generate: it asks for ")
    assert f" more {key} " in finding.says


@pytest.mark.parametrize(("profile", "pods"), [("gpu", 10), ("gpu-4", 2)])
def test_room_for_fewer_pods_than_the_parallelism_is_ok(
    kube: Kube, profile: str, pods: int
) -> None:
    hard = {"requests.nvidia.com/gpu": "10", "pods": "100"}
    kube.put(QUOTAS, "imagekiln", spec={"hard": hard})
    finding = check_resource_quota(kube.needs(profile))
    assert (finding.verdict, finding.says) == (
        "ok",
        f"Room for {pods} GPU pods at once, limited by requests.nvidia.com/gpu; "
        "the job's parallelism is 16.",
    )


@pytest.mark.parametrize(
    ("spec", "verdict"),
    [
        ({"scopes": ["NotTerminating"]}, "ok"),  # our pods have a deadline
        ({"scopes": ["Terminating", "NotBestEffort"]}, "wrong"),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass"}]}}, "ok"),
    ],
)
def test_quota_for_other_pods_does_not_count(
    kube: Kube, spec: dict[str, object], verdict: str
) -> None:
    kube.put(QUOTAS, "imagekiln", spec={"hard": {"pods": "0"}} | spec)
    assert check_resource_quota(kube.needs()).verdict == verdict


@pytest.mark.parametrize(
    ("resource", "maximum", "amount"),
    [
        ("cpu", "3500m", "16"),
        ("memory", "96G", "96Gi"),
        ("ephemeral-storage", "20Gi", "21Gi"),
        ("nvidia.com/gpu", 3, "4"),
    ],
)
def test_limit_range_below_a_request_is_wrong_and_named_with_both_amounts(
    kube: Kube, resource: str, maximum: str | int, amount: str
) -> None:
    _limit(kube, "team", "Container", {resource: maximum})
    finding = check_limit_ranges(kube.needs("gpu-4"))
    assert (finding.verdict, finding.says) == (
        "wrong",
        f"LimitRange team allows a container at most {maximum} of {resource}, and a GPU pod "
        f"requests {amount}: Kubernetes refuses it.",
    )
    assert "`kubectl edit limitrange team -n imagekiln`" in str(finding.remedy)


def test_every_limit_range_below_a_request_is_named(kube: Kube) -> None:
    _limit(kube, "large", "Container", {"cpu": "64"})
    _limit(kube, "memory", "Container", {"memory": "1Gi"})
    _limit(kube, "cores", "Container", {"cpu": "1"})
    finding = check_limit_ranges(kube.needs())
    assert "LimitRange memory allows" in finding.says
    assert "LimitRange cores allows" in finding.says
    assert "edit limitrange cores memory -n" in str(finding.remedy)


@pytest.mark.parametrize(
    ("kind", "maxima", "profile"),
    [
        # As much as the pod requests: Argo's containers beside it count for themselves.
        ("Container", {"cpu": "4", "memory": "24Gi", "nvidia.com/gpu": "1"}, "gpu"),
        ("PersistentVolumeClaim", {"memory": "1Gi"}, "gpu"),
        ("Container", {"nvidia.com/gpu": "0"}, "mig-1g-10gb"),
        ("Container", {"nvidia.com/gpu": "0"}, "dra"),  # a claim is no resource of a container
    ],
)
def test_limit_range_that_allows_the_pods_is_ok(
    kube: Kube, kind: str, maxima: dict[str, object], profile: str
) -> None:
    _limit(kube, "team", kind, maxima)
    finding = check_limit_ranges(kube.needs(profile))
    assert (finding.verdict, finding.says) == ("ok", "No LimitRange refuses the GPU pods.")


def _limit(kube: Kube, name: str, kind: str, maxima: dict[str, object]) -> None:
    kube.put(LIMIT_RANGES, name, spec={"limits": [{"type": kind, "max": maxima}]})


@pytest.mark.parametrize(
    ("key", "text", "verdict"),
    [
        ("s3", "s3: {bucket: reports}", "ok"),
        ("gcs", "s3: {bucket: reports}", "wrong"),  # the default is not among them
        ("s3", "gcs: {bucket: reports}", "wrong"),
        ("s3", "s3: [", "wrong"),
    ],
)
def test_argo_must_have_a_bucket_for_reports(kube: Kube, key: str, text: str, verdict: str) -> None:
    finding = check_artifact_repository(kube.needs())
    assert finding is not None
    assert finding.says.startswith("Argo stores reports in bucket ")
    about = {"annotations": {DEFAULT_REPOSITORY_ANNOTATION: key}}
    kube.put(CONFIG, "artifact-repositories", metadata=about, data={"s3": text})
    finding = check_artifact_repository(kube.needs())
    assert finding is not None
    assert finding.verdict == verdict
    assert ("report_artifact: false" in str(finding.remedy)) == (verdict == "wrong")
