"""A namespace's quotas and limits, and the pods that they admit."""

import pytest

from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_quota import check_resource_quota
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from tests.kube import CORE, Kube

GPU = load_profile("gpu")
QUOTAS = f"{CORE}/resourcequotas"


def _quota(
    kube: Kube,
    hard: dict[str, str],
    profile: Profile = GPU,
    parallelism: int = 16,
    scope: dict[str, object] | None = None,
) -> DoctorCheck:
    kube.put(QUOTAS, "imagekiln", spec={"hard": hard} | (scope or {}))
    return check_resource_quota(kube.view(), profile, parallelism)


@pytest.mark.parametrize("profile", ["gpu", "h200"])
def test_shipped_quota_has_room_for_the_default_parallelism(kube: Kube, profile: str) -> None:
    finding = check_resource_quota(kube.view(), load_profile(profile), 16)
    assert finding.verdict == "ok"
    assert finding.says == "Room for 16 GPU pods at once."


@pytest.mark.parametrize(
    ("key", "hard"),
    [
        ("cpu", "4"),  # 4 and Argo's own 20m
        ("limits.memory", "24820Mi"),  # 24 GiB and 244 MiB, where Argo's own container has 256
    ],
)
def test_quota_that_no_pod_fits_into_is_wrong(kube: Kube, key: str, hard: str) -> None:
    finding = _quota(kube, {key: hard})
    assert finding.verdict == "wrong"
    assert finding.says.startswith("Quota imagekiln never admits a pod of generate: it asks for ")
    assert f" of {key}," in finding.says


def test_room_for_fewer_pods_than_the_parallelism_is_ok(kube: Kube) -> None:
    finding = _quota(kube, {"requests.nvidia.com/gpu": "5", "pods": "100"})
    assert finding.verdict == "ok"
    assert finding.says == (
        "Room for 5 GPU pods at once, limited by requests.nvidia.com/gpu; "
        "the job's parallelism is 16."
    )


def test_pod_with_several_gpus_counts_for_as_many(kube: Kube) -> None:
    finding = _quota(kube, {"requests.nvidia.com/gpu": "10"}, load_profile("gpu-4"))
    assert finding.says.startswith("Room for 2 GPU pods at once")


def test_quota_on_cpu_limits_is_ok_with_a_warning(kube: Kube) -> None:
    assert "But quota imagekiln counts limits.cpu" in _quota(kube, {"limits.cpu": "1k"}).says


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
    assert _quota(kube, {"pods": "0"}, scope=spec).verdict == verdict
