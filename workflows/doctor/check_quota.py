"""Whether the namespace's quotas and limits let our pods in, and how many at once."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from imagekiln.workflows.connection import Json
from imagekiln.workflows.doctor import needs
from imagekiln.workflows.doctor.check import Finding, check, ok, wrong
from imagekiln.workflows.doctor.fields import amount, count, name, part, parts, quantities
from imagekiln.workflows.doctor.kubernetes_view import Kind, KubernetesView
from imagekiln.workflows.doctor.needs import Needs
from imagekiln.workflows.profile import Profile

QUOTAS = Kind("api/v1", "resourcequotas", namespaced=True)
RANGES = Kind("api/v1", "limitranges", namespaced=True)
COMPUTE = ("cpu", "memory")
# Our pods have a deadline and requests, so of quotas for some pods only these count them.
OUR_SCOPES = ("Terminating", "NotBestEffort")


@check("quota")
def quota(view: KubernetesView, profile: Profile, parallelism: int, priorities: Sequence[str]) -> Finding:
    """Each pod fits into every quota; fewer than `parallelism` at once is no fault."""
    quotas = [each for each in view.find(QUOTAS) if _counts_ours(each, priorities)]
    if never := [said for each in quotas for said in _never(each, profile)]:
        return wrong(f"{' '.join(never)}", "Raise the quota, or ask for less in a profile of your own.")
    if "limits.cpu" in {key for each in quotas for key in _hard(each)} and not _cpu_limit(view):
        says = "A quota counts limits.cpu, and pods without a CPU limit, as ours are, are refused by it."
        return wrong(says, "Take limits.cpu out of the quota, or give containers one by a LimitRange's default.")
    rooms = {key: room for each in quotas for key, room in _rooms(_hard(each), _asked(profile)["generate"])}
    if rooms and min(rooms.values()) < parallelism:
        tight = min(rooms, key=lambda key: rooms[key])
        return ok(
            f"Room for {count(rooms[tight], 'GPU pod')} at once, by {tight}; the job's parallelism is {parallelism}."
        )
    return ok(f"Room for {count(parallelism, 'GPU pod')} at once." if quotas else "No quota is set.")


@check("limit-range")
def limit_range(view: KubernetesView, profile: Profile) -> Finding:
    """No container, and no pod, is larger or smaller than a LimitRange allows."""
    items = [item for each in view.find(RANGES) for item in parts(each, "spec", "limits")]
    if faults := [said for item in items for said in _outside(item, profile)]:
        return wrong(" ".join(dict.fromkeys(faults)), "Change the LimitRange, or the profile.")
    return ok("Our containers are within it." if items else "None is set.")


def _asked(profile: Profile) -> dict[str, dict[str, Decimal]]:
    """By step: what one pod counts for, by a quota's names."""
    return {step: _names(pod) for step, pod in needs.by_step(profile).items()}


def _names(pod: Needs) -> dict[str, Decimal]:
    one = {"pods": Decimal(1), "count/pods": Decimal(1)}
    requests = {f"requests.{key}": value for key, value in pod.requests.items()}
    short = {key: pod.requests[key] for key in COMPUTE}  # cpu is another name for requests.cpu
    return one | requests | short | {f"limits.{key}": value for key, value in pod.limits.items()}


def _hard(made: Json) -> dict[str, Decimal]:
    return quantities(made, "spec", "hard")


def _never(made: Json, profile: Profile) -> Iterator[str]:
    for step, asked in _asked(profile).items():
        for key, most in _hard(made).items():
            if asked.get(key, Decimal(0)) > most:
                said = f"asks for {amount(key, asked[key])} of {key}, of which there are {amount(key, most)} in all"
                yield f"Quota {name(made)} never lets a pod of {step} in: it {said}."


def _rooms(hard: Mapping[str, Decimal], asked: Mapping[str, Decimal]) -> Iterator[tuple[str, int]]:
    yield from ((key, int(most // asked[key])) for key, most in hard.items() if asked.get(key))


def _counts_ours(made: Json, priorities: Sequence[str]) -> bool:
    """Whether a quota is for our pods: one may be for pods of some scope, or of some priority class."""
    scopes = part(made, "spec").get("scopes")
    if any(scope not in OUR_SCOPES for scope in (scopes if isinstance(scopes, list) else ())):
        return False
    return all(_selects(each, priorities) for each in parts(made, "spec", "scopeSelector", "matchExpressions"))


def _selects(expression: Json, priorities: Sequence[str]) -> bool:
    if expression.get("scopeName") != "PriorityClass":
        return expression.get("scopeName") in OUR_SCOPES
    values = expression.get("values")
    named = bool(set(priorities) & set(values if isinstance(values, list) else ()))
    return {"In": named, "NotIn": not named, "Exists": bool(priorities), "DoesNotExist": not priorities}[
        str(expression.get("operator"))
    ]


def _cpu_limit(view: KubernetesView) -> bool:
    items = [item for each in view.find(RANGES) for item in parts(each, "spec", "limits")]
    return any("cpu" in part(item, "default") or "cpu" in part(item, "max") for item in items)


def _outside(item: Json, profile: Profile) -> Iterator[str]:
    """What is wrong by one item of a LimitRange, in sentences."""
    most, least = quantities(item, "max"), quantities(item, "min")
    if item.get("type") == "Container":
        # Where a container has no limit, it gets this one, and may not request more.
        most = quantities(item, "default") | most if "cpu" in part(item, "default") else most
        sizes = {"generate": needs.main(profile.generate, profile.gpu), "plan": needs.main(profile.steps)}
        sizes["Argo's own container"] = needs.argo()
    else:
        sizes = needs.by_step(profile) if item.get("type") == "Pod" else {}
    for who, size in sizes.items():
        for key, value in size.requests.items():
            if value > most.get(key, value) or value < least.get(key, value):
                bound = most[key] if value > most.get(key, value) else least[key]
                yield f"{who} asks for {amount(key, value)} of {key}; the LimitRange's bound is {amount(key, bound)}."
