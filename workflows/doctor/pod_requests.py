"""Resources of a pod: those of Imagekiln's container, and of Argo's own beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from imagekiln.workflows.objects import get_mapping
from imagekiln.workflows.profiles.profile import Gpu, PodSettings, Profile
from imagekiln.workflows.templates.pod import POD_OVERHEAD_GIB
from imagekiln.workflows.templates.security import ARGO_RESOURCES

BYTE_RESOURCES = ("memory", "storage")  # how their names end: limits.memory, ephemeral-storage
MIB = 2**20


@dataclass(frozen=True, slots=True)
class PodResources:
    """Requests and limits by resource, in the units of Kubernetes: cores, bytes, devices."""

    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]


def pod_resources(pod: PodSettings, gpu: Gpu | None = None) -> PodResources:
    """Return the resources of a pod with both containers; a GPU by claim is not among them."""
    limits = {"memory": Decimal(round(pod.memory * 1024) * MIB)}
    if pod.disk is not None:
        limits["ephemeral-storage"] = Decimal(round((pod.disk + POD_OVERHEAD_GIB) * 1024) * MIB)
    if gpu is not None and not gpu.claim:
        limits[gpu.resource] = Decimal(gpu.count)
    requests = limits | {"cpu": Decimal(round(pod.cpu * 1000)) / 1000}
    return PodResources(
        requests=_add(requests, get_quantities(ARGO_RESOURCES, "requests")),
        limits=_add(limits, get_quantities(ARGO_RESOURCES, "limits")),
    )


def _add(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {name: one.get(name, zero) + other.get(name, zero) for name in {**one, **other}}


def resources_by_step(profile: Profile) -> dict[str, PodResources]:
    """Return those of generate, and of the CPU steps, which are all like plan's."""
    return {
        "generate": pod_resources(profile.generate, profile.gpu),
        "plan": pod_resources(profile.steps),
    }


def get_quantities(value: object, *keys: str) -> dict[str, Decimal]:
    """Return the quantities at a path of keys, such as 250m or 4Gi, as numbers."""
    from kubernetes.utils.quantity import parse_quantity

    mapping = get_mapping(value, *keys)
    return {key: cast("Decimal", parse_quantity(item)) for key, item in mapping.items()}


def format_amount(resource: str, value: Decimal) -> str:
    """Format an amount of a resource, bytes in GiB."""
    if resource.endswith(BYTE_RESOURCES):
        return f"{float(value / 2**30):g} GiB"
    return f"{float(value):g}"
