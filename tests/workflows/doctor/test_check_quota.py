"""Whether a namespace's quotas and limits let our pods in."""

from pathlib import Path

import pytest

from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_quota import check_limit_range, check_resource_quota
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile
from tests.kube import CORE, Kube

GPU = load_profile("gpu")
QUOTAS = f"{CORE}/resourcequotas"
RANGES = f"{CORE}/limitranges"


def _quota(
    kube: Kube,
    hard: dict[str, str],
    profile: Profile = GPU,
    parallelism: int = 16,
    priority: str = "",
    scope: dict[str, object] | None = None,
) -> DoctorCheck:
    kube.put(QUOTAS, "imagekiln", spec={"hard": hard} | (scope or {}))
    return check_resource_quota(kube.view(), profile, parallelism, [priority] if priority else [])


def _range(kube: Kube, kind: str, **bounds: dict[str, str]) -> DoctorCheck:
    kube.put(RANGES, "imagekiln", spec={"limits": [{"type": kind, **bounds}]})
    return check_limit_range(kube.view(), GPU)


def test_our_own_quota_has_room_for_the_default_parallelism(kube: Kube) -> None:
    found = check_resource_quota(kube.view(), GPU, 16, [])
    assert (found.verdict, found.says) == ("ok", "Room for 16 GPU pods at once.")


@pytest.mark.parametrize(
    ("key", "hard"),
    [
        ("requests.nvidia.com/gpu", "0"),
        ("requests.cpu", "4"),  # 4 and Argo's own 20m
        ("cpu", "4"),
        ("requests.memory", "24Gi"),  # 24 GiB and Argo's own 64 MiB
        ("limits.memory", "24820Mi"),  # 24 GiB and 244 MiB, where Argo's own container has 256
        ("pods", "0"),
    ],
)
def test_a_quota_that_no_pod_fits_into_is_wrong(kube: Kube, key: str, hard: str) -> None:
    found = _quota(kube, {key: hard})
    assert found.verdict == "wrong"
    assert found.says.startswith("Quota imagekiln never lets a pod of generate in: it asks for ")
    assert f" of {key}," in found.says


def test_a_quota_with_room_for_a_pod_and_argos_container_is_enough(kube: Kube) -> None:
    hard = {"requests.cpu": "4020m", "requests.memory": "24640Mi", "limits.memory": "24832Mi"}
    found = _quota(kube, hard, parallelism=1)
    assert (found.verdict, found.says) == ("ok", "Room for 1 GPU pod at once.")


def test_fewer_pods_at_once_than_asked_for_are_said_and_not_wrong(kube: Kube) -> None:
    found = _quota(kube, {"requests.nvidia.com/gpu": "5", "pods": "100"})
    assert found.verdict == "ok"
    assert (
        found.says
        == "Room for 5 GPU pods at once, by requests.nvidia.com/gpu; the job's parallelism is 16."
    )


def test_pods_of_several_gpus_count_for_as_many(kube: Kube) -> None:
    found = _quota(kube, {"requests.nvidia.com/gpu": "10"}, load_profile("gpu-4"))
    assert found.says.startswith("Room for 2 GPU pods at once")


def test_a_quota_of_cpu_limits_refuses_pods_that_have_none(kube: Kube) -> None:
    found = _quota(kube, {"limits.cpu": "1k"})
    assert found.verdict == "wrong"
    assert "limits.cpu" in found.says


def test_a_quota_of_cpu_limits_is_met_by_a_default(kube: Kube) -> None:
    kube.put(RANGES, "imagekiln", spec={"limits": [{"type": "Container", "default": {"cpu": "8"}}]})
    assert _quota(kube, {"limits.cpu": "1k"}).verdict == "ok"


@pytest.mark.parametrize(
    ("spec", "priority", "verdict"),
    [
        ({"scopes": ["NotTerminating"]}, "", "ok"),  # our pods have a deadline
        ({"scopes": ["Terminating", "NotBestEffort"]}, "", "wrong"),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]
                }
            },
            "",
            "ok",
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]
                }
            },
            "a",
            "wrong",
        ),
    ],
)
def test_a_quota_for_other_pods_does_not_count(
    kube: Kube, spec: dict[str, object], priority: str, verdict: str
) -> None:
    assert _quota(kube, {"pods": "0"}, priority=priority, scope=spec).verdict == verdict


def test_without_a_quota_nothing_is_wrong(kube: Kube) -> None:
    del kube.objects[f"{QUOTAS}/imagekiln"]
    assert check_resource_quota(kube.view(), GPU, 16, []).says == "No quota is set."


def test_our_own_limit_range_lets_our_containers_in(kube: Kube) -> None:
    assert check_limit_range(kube.view(), GPU).says == "Our containers are within it."


def test_a_container_larger_than_the_limit_range_allows_is_wrong(kube: Kube) -> None:
    found = _range(kube, "Container", max={"memory": "16Gi"})
    assert (found.verdict, found.says) == (
        "wrong", "generate asks for 24 GiB of memory; the LimitRange's bound is 16 GiB."
    )  # fmt: skip


def test_a_pod_larger_than_the_limit_range_allows_is_wrong(kube: Kube) -> None:
    found = _range(kube, "Pod", max={"cpu": "4"})
    assert found.says == "generate asks for 4.02 of cpu; the LimitRange's bound is 4."


def test_argos_own_container_may_be_too_small(kube: Kube) -> None:
    found = _range(kube, "Container", min={"cpu": "100m"})
    assert found.says == "Argo's own container asks for 0.02 of cpu; the LimitRange's bound is 0.1."


def test_a_default_limit_of_cpu_below_what_we_ask_for_is_wrong(kube: Kube) -> None:
    assert _range(kube, "Container", default={"cpu": "500m"}).verdict == "wrong"


def test_a_profile_that_asks_for_less_is_let_in(kube: Kube, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(
        "description: Small\ngenerate: {memory: 8}\n", encoding="utf-8"
    )
    small = load_profile(str(tmp_path / "small.yaml"))
    kube.put(
        RANGES, "imagekiln", spec={"limits": [{"type": "Container", "max": {"memory": "16Gi"}}]}
    )
    assert check_limit_range(kube.view(), small).verdict == "ok"
