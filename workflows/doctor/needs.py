"""What a pod asks its cluster for: our container, and Argo's own beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from imagekiln.workflows.doctor.fields import quantities
from imagekiln.workflows.profile import Gpu, Pod, Profile
from imagekiln.workflows.security import ARGO_RESOURCES

Amounts = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class Needs:
    """Requests and limits, by resource, in Kubernetes' own units: cores, bytes, pieces."""

    requests: Amounts
    limits: Amounts


def argo() -> Needs:
    """Argo's container that stays beside ours; the one that goes before it never takes more."""
    return Needs(quantities(ARGO_RESOURCES, "requests"), quantities(ARGO_RESOURCES, "limits"))


def main(pod: Pod, gpu: Gpu | None = None) -> Needs:
    """Our container in a pod. A claimed GPU is no resource of it."""
    memory = {"memory": Decimal(round(pod.memory * 1024) * 2**20)}
    pieces = {gpu.resource: Decimal(gpu.count)} if gpu and not gpu.claim else {}
    return Needs({"cpu": Decimal(round(pod.cpu * 1000)) / 1000} | memory | pieces, memory | pieces)


def whole(pod: Pod, gpu: Gpu | None = None) -> Needs:
    """A pod of both containers."""
    ours, theirs = main(pod, gpu), argo()
    return Needs(_sum(ours.requests, theirs.requests), _sum(ours.limits, theirs.limits))


def by_step(profile: Profile) -> dict[str, Needs]:
    """A pod of generate, and one of the CPU steps."""
    return {"generate": whole(profile.generate, profile.gpu), "plan": whole(profile.steps)}


def _sum(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    none = Decimal(0)
    return {key: one.get(key, none) + other.get(key, none) for key in {**one, **other}}
