"""What a pod asks its cluster for: Imagekiln's container, and Argo's own beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from imagekiln.workflows.objects import get_mapping
from imagekiln.workflows.profiles.profile import Gpu, PodSettings, Profile
from imagekiln.workflows.templates.pod import POD_OVERHEAD_GIB
from imagekiln.workflows.templates.security import ARGO_RESOURCES

BYTE_RESOURCES = ("memory", "storage")  # how their names end: limits.memory, ephemeral-storage
ResourceAmounts = Mapping[str, Decimal]
MIB = 2**20


@dataclass(frozen=True, slots=True)
class PodResources:
    """Requests and limits by resource, in the units of Kubernetes: cores, bytes, devices."""

    requests: ResourceAmounts
    limits: ResourceAmounts


def main_container_resources(pod: PodSettings, gpu: Gpu | None = None) -> PodResources:
    """Imagekiln's container. A GPU by claim is not among its resources."""
    cpu = Decimal(round(pod.cpu * 1000)) / 1000
    limits = {"memory": Decimal(round(pod.memory * 1024) * MIB)}
    if pod.disk is not None:
        limits["ephemeral-storage"] = Decimal(round((pod.disk + POD_OVERHEAD_GIB) * 1024) * MIB)
    if gpu is not None and not gpu.claim:
        limits[gpu.resource] = Decimal(gpu.count)
    return PodResources(requests={"cpu": cpu} | limits, limits=limits)


def argo_container_resources() -> PodResources:
    """Argo's sidecar; its init container never asks for more."""
    requests = get_quantities(ARGO_RESOURCES, "requests")
    limits = get_quantities(ARGO_RESOURCES, "limits")
    return PodResources(requests, limits)


def pod_resources(pod: PodSettings, gpu: Gpu | None = None) -> PodResources:
    """A pod with both containers."""
    main = main_container_resources(pod, gpu)
    argo = argo_container_resources()
    return PodResources(
        requests=_add_amounts(main.requests, argo.requests),
        limits=_add_amounts(main.limits, argo.limits),
    )


def resources_by_step(profile: Profile) -> dict[str, PodResources]:
    """A pod of generate, and one of the CPU steps, which are all like plan's."""
    return {
        "generate": pod_resources(profile.generate, profile.gpu),
        "plan": pod_resources(profile.steps),
    }


def _add_amounts(one: ResourceAmounts, other: ResourceAmounts) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {
        resource: one.get(resource, zero) + other.get(resource, zero)
        for resource in {**one, **other}
    }


def get_quantities(value: object, *keys: str) -> dict[str, Decimal]:
    """The mapping of quantities at a path of keys, such as 250m or 4Gi, as numbers."""
    mapping = get_mapping(value, *keys)
    return {key: parse_amount(item) for key, item in mapping.items()}


def parse_amount(text: object) -> Decimal:
    """A Kubernetes quantity, such as 250m or 4Gi, as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return cast("Decimal", parse_quantity(text))


def format_amount(resource: str, value: Decimal) -> str:
    """An amount of a resource for people: bytes in GiB."""
    if resource.endswith(BYTE_RESOURCES):
        gib = float(value / 2**30)
        return f"{gib:g} GiB"
    return f"{float(value):g}"
