"""What a pod asks its cluster for: our container, and Argo's own beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.doctor.kube_fields import get_quantities
from imagekiln.workflows.profiles.profile import Gpu, PodSettings, Profile
from imagekiln.workflows.templates.security import ARGO_RESOURCES

ResourceAmounts = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class PodResources:
    """Requests and limits, by resource, in Kubernetes' own units: cores, bytes, pieces."""

    requests: ResourceAmounts
    limits: ResourceAmounts


def argo_container_resources() -> PodResources:
    """Argo's container that stays beside ours; the one that goes before it never takes more."""
    return PodResources(
        get_quantities(ARGO_RESOURCES, "requests"), get_quantities(ARGO_RESOURCES, "limits")
    )


def main_container_resources(pod: PodSettings, gpu: Gpu | None = None) -> PodResources:
    """Our container in a pod. A claimed GPU is no resource of it."""
    memory = {"memory": Decimal(round(pod.memory * 1024) * 2**20)}
    pieces = {gpu.resource: Decimal(gpu.count)} if gpu and not gpu.claim else {}
    return PodResources(
        {"cpu": Decimal(round(pod.cpu * 1000)) / 1000} | memory | pieces, memory | pieces
    )


def pod_resources(pod: PodSettings, gpu: Gpu | None = None) -> PodResources:
    """A pod of both containers."""
    ours, theirs = main_container_resources(pod, gpu), argo_container_resources()
    return PodResources(
        _add_amounts(ours.requests, theirs.requests), _add_amounts(ours.limits, theirs.limits)
    )


def resources_by_step(profile: Profile) -> dict[str, PodResources]:
    """A pod of generate, and one of the CPU steps."""
    return {
        "generate": pod_resources(profile.generate, profile.gpu),
        "plan": pod_resources(profile.steps),
    }


def _add_amounts(one: ResourceAmounts, other: ResourceAmounts) -> dict[str, Decimal]:
    none = Decimal(0)
    return {key: one.get(key, none) + other.get(key, none) for key in {**one, **other}}
