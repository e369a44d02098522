"""The namespace's quotas: whether they admit our pods, and how many at once."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.pod_requests import (
    PodResources,
    format_amount,
    get_quantities,
    resources_by_step,
)
from imagekiln.workflows.objects import Json, get_list, get_mapping, object_name
from imagekiln.workflows.profiles.profile import Profile

QUOTAS = ResourceKind("api/v1", "resourcequotas", namespaced=True)
# A quota means the requests of these if it does not say more.
COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# The scopes of a quota that pods with a deadline and requests are in.
POD_SCOPES = ("Terminating", "NotBestEffort")


@doctor_check("quota")
def check_resource_quota(view: ClusterView, profile: Profile, parallelism: int) -> Finding:
    """Every quota has room for each pod. Room for fewer than `parallelism` at once is enough."""
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
