"""The namespace's quotas and limits: whether they admit our pods, and how many at once."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.pod_requests import (
    PodResources,
    argo_container_resources,
    format_amount,
    get_quantities,
    main_container_resources,
    resources_by_step,
)
from imagekiln.workflows.objects import Json, get_list, get_mapping, get_mappings, object_name
from imagekiln.workflows.profiles.profile import Profile

QUOTAS = ResourceKind("api/v1", "resourcequotas", namespaced=True)
LIMIT_RANGES = ResourceKind("api/v1", "limitranges", namespaced=True)
# Of which a quota means the requests where it does not say.
COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# Of the scopes that a quota may be restricted to, those of pods with a deadline and requests.
POD_SCOPES = ("Terminating", "NotBestEffort")


@doctor_check("quota")
def check_resource_quota(view: ClusterView, profile: Profile, parallelism: int) -> Finding:
    """Every quota has room for each pod. Room for fewer than `parallelism` at once is enough."""
    quotas = [quota for quota in view.list_objects(QUOTAS) if _counts_pods(quota)]
    if not quotas:
        return ok("The namespace has no quota for these pods.")

    impossible = {object_name(quota): list(_impossible_pods(quota, profile)) for quota in quotas}
    messages = [message for found in impossible.values() for message in found]
    if messages:
        names = " ".join(name for name, found in impossible.items() if found)
        return wrong(
            " ".join(messages),
            f"Raise it: `kubectl edit resourcequota {names} -n {view.namespace}`. "
            "Or ask for less in a profile of your own.",
        )
    counting_cpu = [object_name(each) for each in quotas if "limits.cpu" in _hard_limits(each)]
    if counting_cpu and not _has_default_cpu_limit(view):
        name = counting_cpu[0]
        return wrong(
            f"Quota {name} counts limits.cpu, so it rejects our pods: they set no CPU limit.",
            f"Remove limits.cpu: `kubectl edit resourcequota {name} -n {view.namespace}`. "
            "Or give containers a default CPU limit: "
            f"`kubectl edit limitrange -n {view.namespace}`, or create one.",
        )
    return _room_for_pods(quotas, profile, parallelism)


@doctor_check("limit-range")
def check_limit_range(view: ClusterView, profile: Profile) -> Finding:
    """Every container, and every pod, is within the LimitRanges."""
    items = _limit_range_items(view)
    if not items:
        return ok("The namespace has no LimitRange.")
    violations = [message for item in items for message in _limit_range_violations(item, profile)]
    if violations:
        return wrong(
            " ".join(dict.fromkeys(violations)),
            f"Change the LimitRange: `kubectl edit limitrange -n {view.namespace}`. "
            "Or change the profile.",
        )
    return ok("The pods and their containers are within the LimitRange.")


def _counts_pods(quota: Json) -> bool:
    """Whether a quota certainly counts our pods: those of some priority classes may not."""
    has_own_scope = all(scope in POD_SCOPES for scope in get_list(quota, "spec", "scopes"))
    return has_own_scope and not get_mapping(quota, "spec", "scopeSelector")


def _impossible_pods(quota: Json, profile: Profile) -> Iterator[str]:
    """The steps whose pods the quota never admits, as sentences."""
    for step, usage in _usage_by_step(profile).items():
        for resource, limit in _hard_limits(quota).items():
            amount = usage.get(resource, Decimal(0))
            if amount > limit:
                yield (
                    f"Quota {object_name(quota)} never admits a pod of {step}: it asks for "
                    f"{format_amount(resource, amount)} of {resource}, and the quota is "
                    f"{format_amount(resource, limit)}."
                )


def _room_for_pods(quotas: Sequence[Json], profile: Profile, parallelism: int) -> Finding:
    """How many pods of generate the quotas admit at once, in a sentence."""
    room = _room_by_resource(quotas, profile)
    tightest = min(room, key=room.__getitem__, default=None)
    if tightest is None or room[tightest] >= parallelism:
        return ok(f"Room for {pluralize(parallelism, 'GPU pod')} at once.")
    return ok(
        f"Room for {pluralize(room[tightest], 'GPU pod')} at once, limited by {tightest}; "
        f"the job's parallelism is {parallelism}."
    )


def _room_by_resource(quotas: Sequence[Json], profile: Profile) -> dict[str, int]:
    """How many pods of generate each resource suffices for, over all quotas."""
    usage = _usage_by_step(profile)["generate"]
    room: dict[str, int] = {}
    for quota in quotas:
        for resource, limit in _hard_limits(quota).items():
            if usage.get(resource):
                pods = int(limit // usage[resource])
                room[resource] = min(pods, room.get(resource, pods))
    return room


def _usage_by_step(profile: Profile) -> dict[str, dict[str, Decimal]]:
    """What one pod of each step counts for, by the names that quotas use."""
    return {step: _pod_usage(pod) for step, pod in resources_by_step(profile).items()}


def _pod_usage(pod: PodResources) -> dict[str, Decimal]:
    usage = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for resource, amount in pod.requests.items():
        usage[f"requests.{resource}"] = amount
    for resource in COMPUTE_RESOURCES:
        usage[resource] = pod.requests.get(resource, Decimal(0))
    for resource, amount in pod.limits.items():
        usage[f"limits.{resource}"] = amount
    return usage


def _hard_limits(quota: Json) -> dict[str, Decimal]:
    return get_quantities(quota, "spec", "hard")


def _limit_range_items(view: ClusterView) -> list[Json]:
    ranges = view.list_objects(LIMIT_RANGES)
    return [item for each in ranges for item in get_mappings(each, "spec", "limits")]


def _has_default_cpu_limit(view: ClusterView) -> bool:
    """Whether a LimitRange gives containers a CPU limit; `max` is a default limit too."""
    return any(
        "cpu" in get_mapping(item, field)
        for item in _limit_range_items(view)
        for field in ("default", "max")
    )


def _limit_range_violations(item: Json, profile: Profile) -> Iterator[str]:
    """What is out of bounds by one item of a LimitRange, as sentences."""
    lowest = get_quantities(item, "min")
    highest = _upper_bounds(item)
    for subject, resources in _limited_subjects(item, profile).items():
        for resource, amount in resources.requests.items():
            request = f"{subject} asks for {format_amount(resource, amount)} of {resource}"
            if amount > highest.get(resource, amount):
                bound = format_amount(resource, highest[resource])
                yield f"{request}; the LimitRange allows at most {bound}."
            elif amount < lowest.get(resource, amount):
                bound = format_amount(resource, lowest[resource])
                yield f"{request}; the LimitRange requires at least {bound}."


def _upper_bounds(item: Json) -> Mapping[str, Decimal]:
    """The most that a request may be: `max`, or the limit that a container gets by default."""
    highest = get_quantities(item, "max")
    has_default = item.get("type") == "Container" and "cpu" in get_mapping(item, "default")
    return get_quantities(item, "default") | highest if has_default else highest


def _limited_subjects(item: Json, profile: Profile) -> Mapping[str, PodResources]:
    """The containers or pods that an item of a LimitRange is about."""
    if item.get("type") == "Container":
        return {
            "generate": main_container_resources(profile.generate, profile.gpu),
            "plan": main_container_resources(profile.steps),
            "Argo's own container": argo_container_resources(),
        }
    if item.get("type") == "Pod":
        return resources_by_step(profile)
    return {}
