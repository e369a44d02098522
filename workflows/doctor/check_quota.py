"""Whether the namespace's quotas and limits let our pods in, and how many at once."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.kube_fields import (
    count_noun,
    format_amount,
    get_mapping,
    get_mappings,
    get_quantities,
    object_name,
)
from imagekiln.workflows.doctor.pod_requests import (
    PodResources,
    argo_container_resources,
    main_container_resources,
    resources_by_step,
)
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.profile import Profile

QUOTAS = ResourceKind("api/v1", "resourcequotas", namespaced=True)
LIMIT_RANGES = ResourceKind("api/v1", "limitranges", namespaced=True)
COMPUTE_RESOURCES = ("cpu", "memory")
# Our pods have a deadline and requests, so of quotas for some pods only these count them.
POD_SCOPES = ("Terminating", "NotBestEffort")


@doctor_check("quota")
def check_resource_quota(
    view: ClusterView, profile: Profile, parallelism: int, priorities: Sequence[str]
) -> Finding:
    """Each pod fits into every quota; fewer than `parallelism` at once is no fault."""
    quotas = [each for each in view.list_objects(QUOTAS) if _applies_to_pods(each, priorities)]
    if never := [said for each in quotas for said in _impossible_pods(each, profile)]:
        return wrong(
            f"{' '.join(never)}", "Raise the quota, or ask for less in a profile of your own."
        )
    if "limits.cpu" in {
        key for each in quotas for key in _hard_limits(each)
    } and not _has_default_cpu_limit(view):
        says = "A quota counts limits.cpu, and pods without a CPU limit, as ours are, are refused by it."
        return wrong(
            says,
            "Take limits.cpu out of the quota, or give containers one by a LimitRange's default.",
        )
    rooms = {
        key: room
        for each in quotas
        for key, room in _pods_that_fit(_hard_limits(each), _usage_by_step(profile)["generate"])
    }
    if rooms and min(rooms.values()) < parallelism:
        tight = min(rooms, key=lambda key: rooms[key])
        return ok(
            f"Room for {count_noun(rooms[tight], 'GPU pod')} at once, by {tight}; the job's parallelism is {parallelism}."
        )
    return ok(
        f"Room for {count_noun(parallelism, 'GPU pod')} at once." if quotas else "No quota is set."
    )


@doctor_check("limit-range")
def check_limit_range(view: ClusterView, profile: Profile) -> Finding:
    """No container, and no pod, is larger or smaller than a LimitRange allows."""
    items = [
        item
        for each in view.list_objects(LIMIT_RANGES)
        for item in get_mappings(each, "spec", "limits")
    ]
    if faults := [said for item in items for said in _limit_range_faults(item, profile)]:
        return wrong(" ".join(dict.fromkeys(faults)), "Change the LimitRange, or the profile.")
    return ok("Our containers are within it." if items else "None is set.")


def _usage_by_step(profile: Profile) -> dict[str, dict[str, Decimal]]:
    """By step: what one pod counts for, by a quota's names."""
    return {step: _pod_usage(pod) for step, pod in resources_by_step(profile).items()}


def _pod_usage(pod: PodResources) -> dict[str, Decimal]:
    one = {"pods": Decimal(1), "count/pods": Decimal(1)}
    requests = {f"requests.{key}": value for key, value in pod.requests.items()}
    short = {
        key: pod.requests[key] for key in COMPUTE_RESOURCES
    }  # cpu is another name for requests.cpu
    return one | requests | short | {f"limits.{key}": value for key, value in pod.limits.items()}


def _hard_limits(made: Json) -> dict[str, Decimal]:
    return get_quantities(made, "spec", "hard")


def _impossible_pods(made: Json, profile: Profile) -> Iterator[str]:
    for step, asked in _usage_by_step(profile).items():
        for key, most in _hard_limits(made).items():
            if asked.get(key, Decimal(0)) > most:
                said = f"asks for {format_amount(key, asked[key])} of {key}, of which there are {format_amount(key, most)} in all"
                yield f"Quota {object_name(made)} never lets a pod of {step} in: it {said}."


def _pods_that_fit(
    hard: Mapping[str, Decimal], asked: Mapping[str, Decimal]
) -> Iterator[tuple[str, int]]:
    yield from ((key, int(most // asked[key])) for key, most in hard.items() if asked.get(key))


def _applies_to_pods(made: Json, priorities: Sequence[str]) -> bool:
    """Whether a quota is for our pods: one may be for pods of some scope, or of some priority class."""
    scopes = get_mapping(made, "spec").get("scopes")
    if any(scope not in POD_SCOPES for scope in (scopes if isinstance(scopes, list) else ())):
        return False
    return all(
        _matches_scope(each, priorities)
        for each in get_mappings(made, "spec", "scopeSelector", "matchExpressions")
    )


def _matches_scope(expression: Json, priorities: Sequence[str]) -> bool:
    if expression.get("scopeName") != "PriorityClass":
        return expression.get("scopeName") in POD_SCOPES
    values = expression.get("values")
    named = bool(set(priorities) & set(values if isinstance(values, list) else ()))
    return {
        "In": named,
        "NotIn": not named,
        "Exists": bool(priorities),
        "DoesNotExist": not priorities,
    }[str(expression.get("operator"))]


def _has_default_cpu_limit(view: ClusterView) -> bool:
    items = [
        item
        for each in view.list_objects(LIMIT_RANGES)
        for item in get_mappings(each, "spec", "limits")
    ]
    return any(
        "cpu" in get_mapping(item, "default") or "cpu" in get_mapping(item, "max") for item in items
    )


def _limit_range_faults(item: Json, profile: Profile) -> Iterator[str]:
    """What is wrong by one item of a LimitRange, in sentences."""
    most, least = get_quantities(item, "max"), get_quantities(item, "min")
    if item.get("type") == "Container":
        # Where a container has no limit, it gets this one, and may not request more.
        most = (
            get_quantities(item, "default") | most
            if "cpu" in get_mapping(item, "default")
            else most
        )
        sizes = {
            "generate": main_container_resources(profile.generate, profile.gpu),
            "plan": main_container_resources(profile.steps),
        }
        sizes["Argo's own container"] = argo_container_resources()
    else:
        sizes = resources_by_step(profile) if item.get("type") == "Pod" else {}
    for who, size in sizes.items():
        for key, value in size.requests.items():
            if value > most.get(key, value) or value < least.get(key, value):
                bound = most[key] if value > most.get(key, value) else least[key]
                yield f"{who} asks for {format_amount(key, value)} of {key}; the LimitRange's bound is {format_amount(key, bound)}."
