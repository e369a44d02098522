"""The namespace's quotas: whether they admit our pods, and how many at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import DoctorCheck, doctor_check, ok, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.objects import Json, get_list, get_mapping, object_name
from imagekiln.workflows.profiles.profile import Gpu, PodSettings, Profile
from imagekiln.workflows.templates.pod import POD_OVERHEAD_GIB
from imagekiln.workflows.templates.security import ARGO_RESOURCES

QUOTAS = ResourceKind("api/v1", "resourcequotas", namespaced=True)
# A quota means the requests of these if it does not say more.
COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# The scopes of a quota that pods with a deadline and requests are in.
POD_SCOPES = ("Terminating", "NotBestEffort")
BYTE_RESOURCES = ("memory", "storage")  # how their names end: limits.memory, ephemeral-storage
MIB = 2**20


@dataclass(frozen=True, slots=True)
class PodResources:
    """Requests and limits by resource, in the units of Kubernetes: cores, bytes, devices."""

    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]


@doctor_check("quota")
def check_resource_quota(view: ClusterView, profile: Profile, parallelism: int) -> DoctorCheck:
    """The quotas have room for each pod. Room for fewer than `parallelism` at once is enough."""
    quotas = [quota for quota in view.list_objects(QUOTAS) if _counts_pods(quota)]
    if not quotas:
        return ok("The namespace has no quota for these pods.")
    for quota in quotas:
        if messages := list(_impossible_pods(quota, profile)):
            return wrong(
                " ".join(messages),
                f"Raise it: `kubectl edit resourcequota {object_name(quota)} -n {view.namespace}`. "
                "Or ask for less in a profile of your own.",
            )
    return ok(_room_for_pods(quotas, profile, parallelism) + _cpu_limit_warning(quotas))


def _counts_pods(quota: Json) -> bool:
    """Return whether a quota certainly counts our pods: those of a priority class may not."""
    has_own_scope = all(scope in POD_SCOPES for scope in get_list(quota, "spec", "scopes"))
    return has_own_scope and not get_mapping(quota, "spec", "scopeSelector")


def _impossible_pods(quota: Json, profile: Profile) -> Iterator[str]:
    """Yield a sentence for each kind of pod that the quota never admits."""
    for step, pod in resources_by_step(profile).items():
        usage = _pod_usage(pod)
        for resource, limit in get_quantities(quota, "spec", "hard").items():
            amount = usage.get(resource, Decimal(0))
            if amount > limit:
                yield (
                    f"Quota {object_name(quota)} never admits a pod of {step}: it asks for "
                    f"{format_amount(resource, amount)} of {resource}, and the quota is "
                    f"{format_amount(resource, limit)}."
                )


def _room_for_pods(quotas: Sequence[Json], profile: Profile, parallelism: int) -> str:
    """Return how many pods of generate the quotas admit at once, in a sentence."""
    usage = _pod_usage(resources_by_step(profile)["generate"])
    room = [
        (int(limit // usage[resource]), resource)
        for quota in quotas
        for resource, limit in get_quantities(quota, "spec", "hard").items()
        if usage.get(resource)
    ]
    pods, tightest = min(room, default=(parallelism, ""))
    if pods >= parallelism:
        return f"Room for {pluralize(parallelism, 'GPU pod')} at once."
    return (
        f"Room for {pluralize(pods, 'GPU pod')} at once, limited by {tightest}; "
        f"the job's parallelism is {parallelism}."
    )


def _cpu_limit_warning(quotas: Sequence[Json]) -> str:
    names = [
        object_name(each) for each in quotas if "limits.cpu" in get_quantities(each, "spec", "hard")
    ]
    if not names:
        return ""
    return (
        f" But quota {names[0]} counts limits.cpu, and our pods set no CPU limit: it rejects them "
        "unless a LimitRange gives them one."
    )


def _pod_usage(pod: PodResources) -> dict[str, Decimal]:
    """Return what a pod counts for, by the names that quotas use."""
    usage = {"pods": Decimal(1), "count/pods": Decimal(1)}
    usage |= {f"requests.{name}": amount for name, amount in pod.requests.items()}
    usage |= {name: pod.requests.get(name, Decimal(0)) for name in COMPUTE_RESOURCES}
    return usage | {f"limits.{name}": amount for name, amount in pod.limits.items()}


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
